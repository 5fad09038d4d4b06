// Gives tensors that were there in the run before (known.h) the names they had then; false means that Python has to.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <map>
#include <utility>

#include "known.h"
#include "scopes.h"
#include "wrappers.h"

namespace tensortap {

class KnownTensors {
 public:
  KnownTensors(TensorClasses& classes, Scopes& scopes, Run& run) : classes_(classes), scopes_(scopes), run_(run) {}

  void forget() {
    modules_.forget();
    states_.clear();
  }

  // Parameters: (tensor, entry, node, entry of its gradient, node). Buffers: (tensor, entry, node).
  void remember_modules(PyObject* roots, PyObject* parameters, PyObject* buffers) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
      PyObject* object;
      Named value, gradient;
      parse(PyList_GET_ITEM(parameters, i), "Oiiii", &object, &value.entry, &value.node, &gradient.entry, &gradient.node);
      const at::Tensor tensor = tensor_of(object);
      note_spec(value, tensor);
      // They come and go, above all where models take turns; one that is not there is expected to be like its parameter.
      if (tensor.grad().defined()) {
        note_spec(gradient, tensor.grad());
      } else {
        gradient.spec = value.spec;
      }
      modules_.parameters.push_back(
          {object, tensor.unsafeGetTensorImpl(), value, gradient, is_trained(tensor), hooks_of(tensor)});
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buffers); ++i) {
      KnownBuffer buffer;
      parse(PyList_GET_ITEM(buffers, i), "Oii", &buffer.object, &buffer.value.entry, &buffer.value.node);
      note_spec(buffer.value, tensor_of(buffer.object));
      modules_.buffers.push_back(buffer);
    }
    modules_.remember(roots);
  }

  // Names parameters, their gradients and buffers as in the run before; false if something is different. Hooks that have
  // stayed on the parameters have to be there still.
  bool name_modules(PyObject* roots, bool has_hooks) {
    if (!modules_.is_unchanged(roots)) return false;
    for (const KnownParameter& each : modules_.parameters) {
      const at::Tensor tensor = tensor_of(each.object);
      if (tensor.unsafeGetTensorImpl() != each.impl || is_trained(tensor) != each.is_trained ||
          (has_hooks && hooks_of(tensor) != each.hooks) || !name_again(tensor, each.value)) {
        return false;
      }
      const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
      if (gradient.defined() && !name_again(gradient, each.gradient)) return false;
    }
    for (const KnownBuffer& each : modules_.buffers) {
      if (!name_again(tensor_of(each.object), each.value)) return false;
    }
    return true;
  }

  // Parameters: (tensor, number of the owner, entry, node). States: (parameter, owner, [(key, is it a tensor, entry, node)]).
  void remember_state(PyObject* optimizer, int32_t scope, PyObject* parameters, PyObject* states) {
    constexpr size_t kMostOptimizers = 64;
    if (states_.size() >= kMostOptimizers) states_.clear();
    KnownState& known = states_[{optimizer, scope}] = KnownState{};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
      KnownState::Parameter each;
      parse(PyList_GET_ITEM(parameters, i), "Oiii", &each.object, &each.owner, &each.value.entry, &each.value.node);
      note_spec(each.value, tensor_of(each.object));
      known.parameters.push_back(each);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(states); ++i) {
      KnownState::State state;
      PyObject* items;
      parse(PyList_GET_ITEM(states, i), "OiO", &state.parameter, &state.owner, &items);
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(items); ++j) {
        KnownState::Item item{};
        int known_as_tensor;
        parse(PyList_GET_ITEM(items, j), "OOpii", &item.key, &item.object, &known_as_tensor, &item.value.entry,
              &item.value.node);
        item.is_tensor = known_as_tensor;
        item.type = Py_TYPE(item.object);
        if (item.is_tensor) note_spec(item.value, tensor_of(item.object));
        state.items.push_back(item);
      }
      known.states.push_back(std::move(state));
    }
  }

  // Names the state of an optimizer that begins to step as in its step before, and says what has to do with which parameter.
  bool name_state(PyObject* optimizer, int32_t scope) {
    auto found = states_.find({optimizer, scope});
    if (found == states_.end() || !found->second.is_unchanged(optimizer)) return false;
    for (const auto& each : found->second.parameters) {
      const at::Tensor tensor = tensor_of(each.object);
      if (each.value.entry >= 0 && !name_again(tensor, each.value)) return false;
      own(tensor, each.owner);
      if (tensor.grad().defined()) own(tensor.grad(), each.owner);
    }
    for (const auto& state : found->second.states) {
      for (const auto& item : state.items) {
        if (!item.is_tensor) continue;
        const at::Tensor tensor = tensor_of(item.object);
        if (find(tensor) == kNoValue && !name_again(tensor, item.value)) return false;
        own(tensor, state.owner);
      }
    }
    return true;
  }

 private:
  template <class... Places>
  static void parse(PyObject* tuple, const char* format, Places... places) {
    if (!PyArg_ParseTuple(tuple, format, places...)) throw std::runtime_error(current_error());
  }

  static bool is_trained(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

  // One that was never trained, such as a frozen parameter, is unknown to autograd.
  static const void* hooks_of(const at::Tensor& tensor) {
    if (torch::autograd::impl::get_autograd_meta(tensor) == nullptr) return nullptr;
    return torch::autograd::impl::post_acc_grad_hooks(tensor).get();
  }

  void note_spec(Named& named, const at::Tensor& tensor) {
    const at::Tensor seen = classes_.in_place_of(tensor);
    if (seen.defined()) place_of(seen, &named.spec);
  }

  bool name_again(const at::Tensor& named_tensor, const Named& named) {
    const at::Tensor tensor = classes_.in_place_of(named_tensor);
    if (!tensor.defined()) return false;  // what it is known by is for Python to say
    uint64_t spec;
    const Place place = place_of(tensor, &spec);
    if (named.entry < 0 || spec != named.spec) return false;
    Origin& origin = run_.values.assign(tensor, place, value_of(named.entry, 0));
    run_.values.keep_source(origin, tensor, named.node);
    return true;
  }

  void own(const at::Tensor& tensor, int32_t owner) {
    const Value value = find(tensor);
    if (value != kNoValue) scopes_.own(value, owner);
  }

  // The value of a tensor, or of what it wraps.
  Value find(const at::Tensor& tensor) {
    const at::Tensor seen = classes_.in_place_of(tensor);
    return seen.defined() ? run_.values.value_of(seen) : kNoValue;
  }

  TensorClasses& classes_;
  Scopes& scopes_;
  Run& run_;
  KnownModules modules_;
  std::map<std::pair<PyObject*, int32_t>, KnownState> states_;
};

}  // namespace tensortap
