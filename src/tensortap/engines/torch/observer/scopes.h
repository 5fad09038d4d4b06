// Where in the program an op runs: in which module, in the backward pass of which op, in an optimizer and for which parameter.
// The same rules as in scopes.py.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "forward_ops.h"
#include "frames.h"
#include "known.h"
#include "name_entries.h"
#include "run.h"

namespace tensortap {

// Where ops run that are in no module; written by Python as optimizers come and go.
struct Scope {
  int32_t scope = 0;
  int32_t in_optimizer = 0;
};

// What the gradient of a parameter is called.
struct GradientName {
  int32_t parameter, scope, label, leaf_scope;
};

class Scopes {
 public:
  Scopes(const Decoder& decoder, NameEntries& entries, Run& run) : decoder_(decoder), entries_(entries), run_(run) {}

  Scope outside_modules;
  ForwardOps forward_ops;

  void begin_run() {
    outside_modules = Scope{};
    optimizer_frame_ = nullptr;
    expect_state(nullptr);
    forward_ops.begin_run();
    modules_.clear();
    owners_.clear();
  }

  void end_run() {
    modules_.clear();
    owners_.clear();
    expect_state(nullptr);
  }

  // The scope of a call that begins; its forward op or the parameter it is for are noted in it.
  int32_t of(Call& call) {
    auto running = torch::autograd::get_current_node();
    const bool in_module = !modules_.empty();
    if (running && !(in_module && modules_.back().recomputed)) return of_backward(call, *running);
    if (in_module) return modules_.back().scope;
    if (outside_modules.in_optimizer) {
      // A frame that has been left is moved into its object.
      if (optimizer_frame_ != nullptr && frame_of(optimizer_frame_) != optimizer_place_) decoder_.tell("optimizer_left");
      if (outside_modules.in_optimizer) call.owner = common_owner(call.inputs);
      if (call.owner != 0) return owner_scope(call.owner);
    }
    return outside_modules.scope;
  }

  // ---- modules, announced by PyTorch's global hooks ----

  void add_module(const void* module, int32_t scope) { module_scopes_[module] = scope; }

  void enter_module(PyObject* module, PyObject* arguments) {
    const bool recomputed = (!modules_.empty() && modules_.back().recomputed) || torch::autograd::get_current_node();
    const int32_t parent = modules_.empty() ? 0 : modules_.back().scope;
    run_.in_modules = true;
    auto found = module_scopes_.find(module);
    int32_t scope = found != module_scopes_.end() ? found->second
                                                  : int32_t(decoder_.ask("unknown_module", "Oi", module, parent).number());
    if (recomputed) {
      scope = int32_t(decoder_.ask("recomputed_scope", "i", scope).number());
    } else if (modules_.empty() && has_unnamed(arguments)) {
      decoder_.ask("enter_root", "iOO", scope, module, arguments);
    }
    modules_.push_back({scope, recomputed});
  }

  void leave_module() {
    if (!modules_.empty()) modules_.pop_back();
  }

  // ---- parameters and optimizers ----

  void add_parameter(const c10::TensorImpl* impl, const GradientName& name) { parameters_[impl] = name; }

  const GradientName* gradient_of(const at::Tensor& parameter) const {
    auto found = parameters_.find(parameter.unsafeGetTensorImpl());
    return found == parameters_.end() ? nullptr : &found->second;
  }

  // An optimizer steps in this frame, which Python keeps meanwhile, or (None) no optimizer steps any more.
  void step_in_frame(PyObject* frame) {
    optimizer_frame_ = PyFrame_Check(frame) ? frame : nullptr;
    optimizer_place_ = PyFrame_Check(frame) ? frame_of(frame) : nullptr;
  }

  // The state of the optimizer that steps, all of which is known now; with the GIL.
  void expect_state(PyObject* state) {
    PyObject* before = state_;
    state_ = state != nullptr && PyDict_Check(state) ? Py_NewRef(state) : nullptr;
    state_size_ = state_ == nullptr ? 0 : PyDict_GET_SIZE(state_);
    Py_XDECREF(before);
  }

  // Whether the optimizer that steps may have made state since, for parameters that had none.
  bool may_have_new_state() const {
    return outside_modules.in_optimizer && (state_ == nullptr || PyDict_GET_SIZE(state_) != state_size_);
  }

  // A value has to do with a parameter.
  void own(Value value, int32_t owner) { owners_[value] = owner; }

  // Modules and parameters will be announced again.
  void forget_known() {
    parameters_.clear();
    module_scopes_.clear();
  }

 private:
  struct RunningModule {
    int32_t scope;
    bool recomputed;  // called by the backward pass
  };

  static constexpr uint64_t kNoSequence = UINT64_MAX;  // of autograd nodes that belong to a parameter

  int32_t of_backward(Call& call, torch::autograd::Node& running) {
    const uint64_t sequence = running.sequence_nr();
    const int32_t forward = forward_ops.entry_of(sequence);
    if (forward != kNone) {
      call.forward = forward;
      const int32_t known = entries_.gradient_scope(forward);
      if (known != kNone) return known;
      const int32_t made = int32_t(decoder_.number("gradient_scope", "i", forward));
      return entries_.gradient_scope(forward) = made;
    }
    auto* accumulate = sequence == kNoSequence ? dynamic_cast<torch::autograd::AccumulateGrad*>(&running) : nullptr;
    if (accumulate != nullptr) {
      if (const GradientName* name = gradient_of(accumulate->variable)) return name->leaf_scope;
      return int32_t(decoder_.number("leaf_scope", "L", (long long)run_.values.value_of(accumulate->variable)));
    }
    return stray_scope(running.name());  // its forward op ran before this run
  }

  // The parameter that all inputs have to do with, as far as they have to do with one; 0 if there are several.
  int32_t common_owner(c10::ArrayRef<Value> inputs) const {
    int32_t owner = 0;
    for (Value value : inputs) {
      auto found = owners_.find(value);
      if (found == owners_.end()) continue;
      if (owner != 0 && owner != found->second) return 0;
      owner = found->second;
    }
    return owner;
  }

  int32_t owner_scope(int32_t owner) {
    const int32_t scope = outside_modules.scope;
    const uint64_t key = (uint64_t(uint32_t(scope)) << 32) | uint32_t(owner);
    auto found = owner_scopes_.find(key);
    if (found != owner_scopes_.end()) return found->second;
    const int32_t made = int32_t(decoder_.number("owner_scope", "ii", scope, owner));
    return owner_scopes_[key] = made;
  }

  int32_t stray_scope(const std::string& name) {
    auto found = stray_scopes_.find(name);
    if (found != stray_scopes_.end()) return found->second;
    const int32_t made = int32_t(decoder_.number("stray_scope", "s", name.c_str()));
    return stray_scopes_[name] = made;
  }

  // Whether one of the tensors that a module is given may have no name yet.
  bool has_unnamed(PyObject* arguments) {
    if (!PyTuple_Check(arguments)) return true;
    WithPython python;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
      PyObject* argument = PyTuple_GET_ITEM(arguments, i);
      if (!is_tensor(argument)) continue;
      if (!is_ordinary_tensor(argument)) return true;
      const at::Tensor tensor = tensor_of(argument);
      if (is_wrapper(tensor) || run_.values.value_of(tensor) == kNoValue) return true;
    }
    return false;
  }

  const Decoder& decoder_;
  NameEntries& entries_;
  Run& run_;
  std::vector<RunningModule> modules_;
  PyObject* optimizer_frame_ = nullptr;
  const Frame* optimizer_place_ = nullptr;
  PyObject* state_ = nullptr;
  Py_ssize_t state_size_ = 0;
  ska::flat_hash_map<Value, int32_t> owners_;
  ska::flat_hash_map<const c10::TensorImpl*, GradientName> parameters_;
  ska::flat_hash_map<const void*, int32_t> module_scopes_;
  ska::flat_hash_map<uint64_t, int32_t> owner_scopes_;
  std::unordered_map<std::string, int32_t> stray_scopes_;
};

}  // namespace tensortap
