// Kernels of the operators that programs call most, in the place of the one that fallback.h has for all: with the signature of
// the operator, so that PyTorch need not put its arguments onto a stack, with a reference to each tensor, and take them off again.
// That is most of what PyTorch's own part of watching an operator costs.
#pragma once

#include <initializer_list>

#include "fallback.h"

namespace tensortap {

using Returned = c10::SmallVector<const at::Tensor*, 4>;

inline void collect(const at::Tensor& tensor, Returned& found) {
  if (tensor.defined()) found.push_back(&tensor);
}

inline void collect(const std::vector<at::Tensor>& tensors, Returned& found) {
  for (const at::Tensor& tensor : tensors) collect(tensor, found);
}

inline void collect(const at::Scalar&, Returned&) {}
inline void collect(const bool&, Returned&) {}

template <class... Types>
void collect(const std::tuple<Types...>& results, Returned& found) {
  std::apply([&](const auto&... each) { (collect(each, found), ...); }, results);
}

// The part of a kernel that is the same for all signatures.
class SeenOperator {
 public:
  SeenOperator(const c10::OperatorHandle& handle, size_t number) : handle_(handle), number_(number) {}

  void start(Thread& thread, Observer& observer, Arguments arguments) const {
    thread.depth = 1;
    thread.is_wrapped = false;
    guarded(thread, observer, "before an operator",
            [&] { observer.start(thread, observer.operator_of(handle_, number_), arguments, true); });
  }

  __attribute__((noinline)) static void end(Looking& looking, const Returned& returned) { looking.end(Outputs(returned)); }

 private:
  c10::OperatorHandle handle_;
  size_t number_;
};

template <class Signature>
class TypedKernel;

template <class Result, class... Parameters>
class TypedKernel<Result(Parameters...)> {
 public:
  TypedKernel(const c10::OperatorHandle& handle, size_t number)
      : handle_(handle.typed<Result(Parameters...)>()), seen_(handle, number) {}

  Result operator()(c10::DispatchKeySet keys, Parameters... parameters) const {
    const auto below = below_ours(keys);
    const auto go_on = [&]() -> Result { return handle_.redispatch(below, std::forward<Parameters>(parameters)...); };
    Thread& thread = this_thread();
    Observer* observer = looking_at(thread);
    if (observer == nullptr) {
      c10::impl::ExcludeDispatchKeyGuard inside_unseen(kFallbackKey);
      return go_on();
    }
    const Argument arguments[] = {argument_of(parameters)...};
    seen_.start(thread, *observer, arguments);
    if (thread.opaque_depth != 0) {
      Looking looking(thread, *observer);
      Result result = go_on();
      Returned returned;
      collect(result, returned);
      SeenOperator::end(looking, returned);
      return result;
    }
    if (thread.is_wrapped) {
      LookingInside looking(thread);
      return go_on();
    }
    return go_on();  // it only calls others
  }

 private:
  c10::TypedOperatorHandle<Result(Parameters...)> handle_;
  SeenOperator seen_;
};

class TypedKernels {
 public:
  explicit TypedKernels(torch::Library& library) : library_(library) {}

  // Those of other versions of PyTorch, or with a kernel of somebody else at our key, are left to the fallback.
  template <class Signature>
  void add(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const std::string full(name);
      const size_t dot = full.find('.');
      const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
      const auto handle = c10::Dispatcher::singleton().findSchema({"aten::" + full.substr(0, dot), overload});
      if (!handle.has_value() || handle->hasKernelForDispatchKey(kFallbackKey)) continue;
      try {
        library_.impl(name, torch::CppFunction(TypedKernel<Signature>(*handle, count_)));
        count_ += 1;
      } catch (const c10::Error&) {  // its signature is another
      }
    }
  }

 private:
  torch::Library& library_;
  size_t count_ = 0;
};

inline void add_typed_kernels(torch::Library& library) {
  using T = const at::Tensor&;
  using Written = at::Tensor&;
  using S = const at::Scalar&;
  using Sizes = c10::SymIntArrayRef;
  TypedKernels kernels(library);
  kernels.add<at::Tensor(T)>({"t", "detach", "alias", "sigmoid", "tanh", "relu", "silu", "exp", "log", "neg", "sqrt", "rsqrt",
                              "abs", "sin", "cos", "reciprocal", "erf", "log1p", "isnan", "logical_not", "bitwise_not",
                              "sign", "floor", "square", "numpy_T", "isfinite", "max", "min", "_is_all_true",
                              "_is_any_true"});
  kernels.add<at::Tensor(T, T)>({"mm", "bmm", "mv", "dot", "mul.Tensor", "div.Tensor", "sigmoid_backward", "tanh_backward",
                                 "silu_backward", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor",
                                 "ge.Tensor", "maximum", "minimum", "pow.Tensor_Tensor", "bitwise_and.Tensor",
                                 "bitwise_or.Tensor", "logical_and", "logical_or", "remainder.Tensor", "matmul", "__and__.Tensor",
                                 "__or__.Tensor", "view_as", "expand_as"});
  kernels.add<at::Tensor(T, S)>({"mul.Scalar", "div.Scalar", "pow.Tensor_Scalar", "eq.Scalar", "ne.Scalar", "lt.Scalar",
                                 "le.Scalar", "gt.Scalar", "ge.Scalar", "remainder.Scalar", "leaky_relu", "clamp_min",
                                 "clamp_max"});
  kernels.add<at::Tensor(T, S, S)>({"add.Scalar", "sub.Scalar", "rsub.Scalar", "softplus", "hardtanh"});
  kernels.add<at::Tensor(T, T, S)>({"add.Tensor", "sub.Tensor", "rsub.Tensor", "threshold_backward", "lerp.Scalar",
                                    "masked_fill.Scalar"});
  kernels.add<at::Tensor(T, T, T)>({"where.self", "lerp.Tensor"});
  kernels.add<at::Tensor(T, T, T, S)>({"addcmul", "addcdiv"});
  kernels.add<at::Tensor(T, T, T, S, S)>({"addmm", "baddbmm", "addmv"});
  kernels.add<at::Tensor(T, Sizes)>({"view", "reshape", "_unsafe_view"});
  kernels.add<at::Tensor(T, Sizes, bool)>({"expand"});
  kernels.add<at::Tensor(T, at::IntArrayRef)>({"permute"});
  kernels.add<at::Tensor(T, at::IntArrayRef, bool)>({"logsumexp", "amax", "amin"});
  kernels.add<at::Tensor(T, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>)>({"sum.dim_IntList", "mean.dim"});
  kernels.add<at::Tensor(T, std::optional<at::ScalarType>)>({"sum", "mean"});
  kernels.add<at::Tensor(T, std::optional<at::MemoryFormat>)>({"clone"});
  kernels.add<at::Tensor(T, int64_t)>({"unsqueeze", "squeeze.dim"});
  kernels.add<at::Tensor(T, int64_t, bool)>({"_softmax", "_log_softmax", "all.dim", "any.dim"});
  kernels.add<at::Tensor(T, int64_t, int64_t)>({"transpose.int", "flatten.using_ints"});
  kernels.add<at::Tensor(T, int64_t, c10::SymInt, c10::SymInt)>({"narrow"});
  kernels.add<at::Tensor(T, int64_t, c10::SymInt)>({"select.int"});
  kernels.add<at::Tensor(T, int64_t, std::optional<c10::SymInt>, std::optional<c10::SymInt>, c10::SymInt)>({"slice.Tensor"});
  kernels.add<at::Tensor(T, int64_t, T, bool)>({"gather"});
  kernels.add<at::Tensor(T, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&)>({"clamp"});
  kernels.add<at::Tensor(T, T, const std::optional<at::Tensor>&)>({"linear"});
  kernels.add<std::vector<at::Tensor>(T, c10::SymInt, int64_t)>({"split.Tensor", "unsafe_split.Tensor"});
  kernels.add<std::vector<at::Tensor>(T, int64_t)>({"unbind.int"});
  kernels.add<std::vector<at::Tensor>(T, int64_t, int64_t)>({"chunk", "unsafe_chunk"});
  kernels.add<std::vector<at::Tensor>(at::TensorList)>({"broadcast_tensors"});
  kernels.add<at::Tensor(at::TensorList, int64_t)>({"stack"});
  kernels.add<at::Tensor(const at::ITensorListRef&, int64_t)>({"cat"});
  kernels.add<at::Tensor(T, int64_t, std::optional<at::ScalarType>)>({"softmax.int", "log_softmax.int"});
  kernels.add<at::Tensor(T, T, int64_t, at::ScalarType)>({"_softmax_backward_data", "_log_softmax_backward_data"});
  kernels.add<at::Tensor(T, T, S, bool)>({"leaky_relu_backward"});
  kernels.add<at::Tensor(T, T, int64_t)>({"mse_loss"});
  kernels.add<at::Tensor(T, T, c10::SymInt, bool, bool)>({"embedding"});
  kernels.add<at::Tensor(T, double, bool)>({"dropout"});
  kernels.add<at::Tensor(T, Sizes, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, double, bool)>(
      {"layer_norm"});
  kernels.add<at::Tensor(T, at::ScalarType, bool, bool, std::optional<at::MemoryFormat>)>({"to.dtype"});
  kernels.add<at::Tensor(T, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>, bool, bool, std::optional<at::MemoryFormat>)>({"to.dtype_layout"});
  kernels.add<at::Tensor(Sizes, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>)>({"zeros", "ones", "rand", "randn"});
  kernels.add<at::Tensor(T, c10::SymInt, bool, std::optional<at::Generator>)>({"multinomial"});
  kernels.add<at::Tensor(T, const c10::List<std::optional<at::Tensor>>&)>({"index.Tensor"});
  kernels.add<std::tuple<at::Tensor, at::Tensor>(T, at::TensorList, T, T, const std::optional<at::Tensor>&,
                                                 const std::optional<at::Tensor>&)>({"lstm_cell"});
  kernels.add<at::Scalar(T)>({"item", "_local_scalar_dense"});
  kernels.add<bool(T)>({"is_nonzero"});
  kernels.add<Written(Written)>({"zero_", "sqrt_", "relu_", "neg_", "sigmoid_", "tanh_", "exp_"});
  kernels.add<Written(Written, T)>({"mul_.Tensor", "div_.Tensor"});
  kernels.add<Written(Written, S)>({"mul_.Scalar", "div_.Scalar", "fill_.Scalar", "clamp_min_"});
  kernels.add<Written(Written, T, bool)>({"copy_"});
  kernels.add<Written(Written, T, S)>({"add_.Tensor", "sub_.Tensor", "lerp_.Scalar", "masked_fill_.Scalar"});
  kernels.add<Written(Written, S, S)>({"add_.Scalar", "sub_.Scalar"});
  kernels.add<Written(Written, T, T, S)>({"addcmul_", "addcdiv_"});
}

// Whether ops can be seen this way; puts the kernels in their place at first.
inline bool has_fallback() {
  static const bool is_ours = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kFallbackKey)) return false;
    // Kept: without a kernel, a thread with the key switched on could not call anything.
    auto* library = new torch::Library(torch::Library::IMPL, "_", kFallbackKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&on_call>());
    add_typed_kernels(*new torch::Library(torch::Library::IMPL, "aten", kFallbackKey, __FILE__, __LINE__));
    return true;
  }();
  return is_ours;
}

}  // namespace tensortap
