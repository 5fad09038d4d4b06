// What an operator is called with, as it lies there: on PyTorch's stack, or as the parameters of a function in C++. To look at
// it takes no reference to a tensor and no memory.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace tensortap {

using TensorReference = std::reference_wrapper<const at::Tensor>;

struct Argument {
  enum Kind : uint8_t { kNothing, kTensor, kTensors, kReferences, kItems, kInteger, kBoolean, kNumber, kIntegers, kOther };

  Kind kind = kNothing;
  bool boolean = false;
  const void* object = nullptr;  // a tensor; tensors, references to some, integers or values of PyTorch in a row; or something other
  union {
    int64_t integer = 0;
    double number;
    size_t count;  // in a row
  };
  c10::IValue (*box)(const void*) = nullptr;  // of something other

  const at::Tensor& tensor() const { return *static_cast<const at::Tensor*>(object); }
  c10::ArrayRef<at::Tensor> tensors() const { return c10::ArrayRef<at::Tensor>(static_cast<const at::Tensor*>(object), count); }
  c10::ArrayRef<TensorReference> references() const { return {static_cast<const TensorReference*>(object), count}; }
  c10::ArrayRef<c10::IValue> items() const { return c10::ArrayRef<c10::IValue>(static_cast<const c10::IValue*>(object), count); }
  c10::IntArrayRef integers() const { return c10::IntArrayRef(static_cast<const int64_t*>(object), count); }

  // As PyTorch has it on its stack: for what is new.
  c10::IValue boxed() const {
    switch (kind) {
      case kNothing: return {};
      case kTensor: return tensor();
      case kTensors: return tensors();
      case kReferences: {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : references()) list.push_back(tensor);
        return list;
      }
      case kInteger: return integer;
      case kBoolean: return boolean;
      case kNumber: return number;
      case kIntegers: return integers();
      case kItems: {
        c10::impl::GenericList list(c10::AnyType::get());
        for (const auto& item : items()) list.push_back(item);
        return list;
      }
      case kOther: break;
    }
    return box(object);
  }
};

using Arguments = c10::ArrayRef<Argument>;

template <class Type>
Argument other_argument(const Type& object) {
  Argument made;
  made.kind = Argument::kOther;
  made.object = &object;
  made.box = [](const void* there) { return c10::IValue(*static_cast<const Type*>(there)); };
  return made;
}

inline Argument argument_of(const at::Tensor& tensor) {
  Argument made;
  made.kind = Argument::kTensor;
  made.object = &tensor;
  return made;
}

inline Argument row_of(Argument::Kind kind, const void* first, size_t count) {
  Argument made;
  made.kind = kind;
  made.object = first;
  made.count = count;
  return made;
}

inline Argument argument_of(c10::ArrayRef<at::Tensor> tensors) { return row_of(Argument::kTensors, tensors.data(), tensors.size()); }
inline Argument argument_of(c10::IntArrayRef numbers) { return row_of(Argument::kIntegers, numbers.data(), numbers.size()); }

inline Argument argument_of(const int64_t& number) {
  Argument made;
  made.kind = Argument::kInteger;
  made.integer = number;
  return made;
}

inline Argument argument_of(const bool& boolean) {
  Argument made;
  made.kind = Argument::kBoolean;
  made.boolean = boolean;
  return made;
}

inline Argument argument_of(const double& number) {
  Argument made;
  made.kind = Argument::kNumber;
  made.number = number;
  return made;
}

inline Argument argument_of(const c10::ScalarType& dtype) { return argument_of(int64_t(dtype)); }
inline Argument argument_of(const c10::MemoryFormat& format) { return argument_of(int64_t(format)); }
inline Argument argument_of(const c10::Layout& layout) { return argument_of(int64_t(layout)); }
inline Argument argument_of(const c10::Device& device) { return other_argument(device); }
inline Argument argument_of(const at::Generator& generator) { return other_argument(generator); }

inline Argument argument_of(const c10::Scalar& scalar) {
  if (scalar.isFloatingPoint()) return argument_of(scalar.toDouble());
  if (scalar.isIntegral(false) && !scalar.isSymbolic()) return argument_of(scalar.toLong());
  if (scalar.isBoolean() && !scalar.isSymbolic()) return argument_of(scalar.toBool());
  return other_argument(scalar);
}

inline Argument argument_of(const c10::SymInt& number) {
  if (const auto known = number.maybe_as_int()) return argument_of(*known);
  return other_argument(number);
}

inline Argument argument_of(const c10::SymIntArrayRef& numbers) {
  if (const auto known = c10::asIntArrayRefSlowOpt(numbers)) return argument_of(*known);
  return other_argument(numbers);
}

// The values stay where they are as long as the list does.
template <class Type>
Argument argument_of(const c10::List<Type>& list) {
  const auto items = c10::IValue(list).toListRef();
  return row_of(Argument::kItems, items.data(), items.size());
}

inline Argument argument_of(const at::ITensorListRef& tensors) {
  if (tensors.isUnboxed()) return argument_of(tensors.toUnboxed());
  if (tensors.isBoxed()) return argument_of(tensors.toBoxed());
  const auto& references = tensors.toMaterialized();
  return row_of(Argument::kReferences, references.data(), references.size());
}

inline Argument argument_of(const at::OptionalIntArrayRef& numbers) {
  return numbers.has_value() ? argument_of(*numbers) : Argument{};
}

template <class Type>
Argument argument_of(const std::optional<Type>& value) {
  return value.has_value() ? argument_of(*value) : Argument{};
}

inline Argument argument_of(const c10::IValue& value) {
  if (value.isTensor()) return argument_of(value.toTensor());
  if (value.isNone()) return {};
  if (value.isInt()) return argument_of(value.toInt());
  if (value.isBool()) return argument_of(value.toBool());
  if (value.isDouble()) return argument_of(value.toDouble());
  if (value.isList()) return row_of(Argument::kItems, value.toListRef().data(), value.toListRef().size());
  return other_argument(value);
}

// Those of a call on PyTorch's stack, which lie at its end.
class StackArguments {
 public:
  StackArguments(c10::ArrayRef<const c10::IValue> stack, size_t count) {
    for (const auto& value : stack.slice(stack.size() > count ? stack.size() - count : 0)) found_.push_back(argument_of(value));
  }
  operator Arguments() const { return found_; }

 private:
  c10::SmallVector<Argument, 12> found_;
};

// Calls `show` with every tensor, until it answers true; whether it has.
template <class Show>
bool any_tensor(Arguments arguments, Show show) {
  for (const Argument& each : arguments) {
    if (each.kind == Argument::kTensor) {
      if (show(each.tensor())) return true;
    } else if (each.kind == Argument::kTensors) {
      for (const at::Tensor& tensor : each.tensors()) {
        if (show(tensor)) return true;
      }
    } else if (each.kind == Argument::kReferences) {
      for (const at::Tensor& tensor : each.references()) {
        if (show(tensor)) return true;
      }
    } else if (each.kind == Argument::kItems) {
      for (const auto& item : each.items()) {
        if (!item.isTensor()) break;
        if (show(item.toTensor())) return true;
      }
    }
  }
  return false;
}

}  // namespace tensortap
