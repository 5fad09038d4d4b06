// What there is to know of an operator before it runs: most of it is in its schema, and Python reads that once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/dispatch/ObservedOperators.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "decoder.h"
#include "values.h"

namespace tensortap {

// What every call asks of it lies together, at the beginning.
struct alignas(64) Operator {
  int32_t index = kNone;
  int32_t label = kNone;
  bool transparent = false;
  bool is_view = false;
  bool is_communication = false;
  bool keeps_written = false;  // some of what it writes is not among its results
  bool leaves_garbage = false;  // its output is memory as it was found
  bool is_collective = false, is_wait = false;
  bool overwrites = false;  // what it writes into, without a look at it
  bool last_descends = false;  // see dispatching.h
  bool has_composite = false;
  int training_argument = kNone;  // it writes only if this argument is true
  uint64_t written = 0;  // arguments, as bits
  uint64_t last_keys = 0;
  size_t argument_count = 0, return_count = 0;
  bool is_built_in = false;
  std::optional<c10::OperatorHandle> handle;
  std::string name, overload;

  // Which arguments a call with these writes to.
  uint64_t written_by(Arguments arguments) const {
    if (written == 0 || training_argument < 0) return written;
    const size_t place = size_t(training_argument);
    const bool is_true =
        place < arguments.size() && arguments[place].kind == Argument::kBoolean && arguments[place].boolean;
    return is_true ? written : 0;
  }
};

class Operators {
 public:
  explicit Operators(const Decoder& decoder) : decoder_(decoder) {}

  // Null for what is none, such as a node of autograd.
  Operator* of(const at::RecordFunction& fn) {
    const char* name = fn.name();  // of a schema, so each overload has its own
    const auto recent = built_in_.find(name);
    if (recent != built_in_.end()) return recent->second;
    if (!is_operator_name(name)) return nullptr;
    const auto full_name = fn.operator_name();
    return of(name, full_name.has_value() ? full_name->overload_name : "");
  }

  // Of one that has a number of its own, see typed_kernels.h.
  Operator* of(const c10::OperatorHandle& handle, size_t number) {
    if (number < numbered_.size() && numbered_[number] != nullptr) return numbered_[number];
    if (number >= numbered_.size()) numbered_.resize(number + 1);
    return numbered_[number] = of(handle);
  }

  Operator* of(const c10::OperatorHandle& handle) {
    const auto recent = built_in_.find(&handle.operator_name());
    if (recent != built_in_.end()) return recent->second;
    Operator* found = of(handle.schema().name().c_str(), handle.schema().overload_name());
    if (found->is_built_in) built_in_[&handle.operator_name()] = found;
    return found;
  }

 private:
  Operator* of(const char* name, const std::string& overload) {
    auto& known = operators_[std::string(name) + "." + overload];
    if (known == nullptr) known = read(name, overload);
    // Names can be freed and their address given to another operator, except those of PyTorch itself.
    if (known->is_built_in) built_in_[name] = known.get();
    return known.get();
  }

  // Not those of autograd's nodes ("autograd::engine::evaluate_function: MulBackward0") nor of blocks that somebody has given a
  // name: there is one for every op of the backward pass, at a new address each time.
  static bool is_operator_name(const char* name) {
    return std::strchr(name, ' ') == nullptr && std::strstr(name, "::") != nullptr;
  }

  std::unique_ptr<Operator> read(const std::string& name, const std::string& overload) const {
    auto op = std::make_unique<Operator>();
    op->name = name;
    op->overload = overload;
    op->transparent = true;
    op->handle = c10::Dispatcher::singleton().findSchema({name, overload});
    if (op->handle.has_value()) {
      op->is_built_in = name.compare(0, 6, "aten::") == 0;
      op->has_composite = op->handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
      op->argument_count = op->handle->schema().arguments().size();
      op->return_count = op->handle->schema().returns().size();
      // What PyTorch itself does not record is none of the program's: sizes, marks of its profiler.
      if (c10::ObservedOperators::isObserved(op->handle->operator_name())) ask_about(*op);
    }
    return op;
  }

  void ask_about(Operator& op) const {
    WithPython python;
    Object found = decoder_.ask("new_operator", "ss", op.name.c_str(), op.overload.c_str());
    int transparent, is_view, is_communication, keeps_written, leaves_garbage, is_collective, is_wait;
    PyObject* written;
    if (!PyArg_ParseTuple(found.get(), "iipppipOppp", &op.index, &op.label, &transparent, &is_view, &is_communication,
                          &op.training_argument, &keeps_written, &written, &leaves_garbage, &is_collective, &is_wait)) {
      throw std::runtime_error(current_error());
    }
    op.transparent = transparent;
    op.is_view = is_view;
    op.is_communication = is_communication;
    op.keeps_written = keeps_written;
    op.leaves_garbage = leaves_garbage;
    op.is_collective = is_collective;
    op.is_wait = is_wait;
    for (const char* each : {"copy_", "fill_", "zero_", "set_", "resize_", "normal_", "uniform_"}) {
      const std::string ending(each);
      const size_t size = op.name.size();
      if (size > ending.size() && op.name.compare(size - ending.size(), ending.size(), ending) == 0) op.overwrites = true;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(written); ++i) {
      const size_t place = PyLong_AsSize_t(PyTuple_GET_ITEM(written, i));
      if (place < 64) op.written |= uint64_t(1) << place;
    }
  }

  const Decoder& decoder_;
  std::unordered_map<std::string, std::unique_ptr<Operator>> operators_;
  ska::flat_hash_map<const void*, Operator*> built_in_;  // by the address of their names, in schemas and in the dispatcher
  std::vector<Operator*> numbered_;
};

}  // namespace tensortap
