// Tensors of classes that hold another one, as memory.py knows them. What it says of a class is asked once: a program over
// DTensors brings one to every other op, and Python takes longer for the answer than for the op.
#pragma once

#include "arguments.h"
#include "decoder.h"
#include "known.h"

#include <c10/util/flat_hash_map.h>

namespace tensortap {

// The object of a tensor, which lives as long as the tensor if it is of a class of its own; by the names of PyTorch's versions.
template <class Slot>
auto object_in(const Slot* slot, int) -> decltype(slot->load_pyobj()) {
  return slot->load_pyobj();
}
template <class Slot>
auto object_in(const Slot* slot, long) -> decltype(slot->_unchecked_untagged_pyobj()) {
  return slot->_unchecked_untagged_pyobj();
}

struct TensorClass {
  unsigned int version = 0;  // Python's: no two classes share one, a change to a class takes it away, and 0 is none
  bool shows_its_ops = false;
  PyObject* attribute = nullptr;  // with the tensor that stands for one of this class; null if only Python can tell
};

class TensorClasses {
 public:
  explicit TensorClasses(const Decoder& decoder) : decoder_(decoder) {}

  // Whether an op is seen as those that a wrapper among its arguments executes on what it wraps.
  bool show_their_ops(Arguments arguments) {
    return any_tensor(arguments, [this](const at::Tensor& tensor) { return shows_its_ops(tensor); });
  }

  // With the GIL: the ordinary tensor by which this one is known, itself or what it wraps; undefined if only Python can tell.
  at::Tensor in_place_of(const at::Tensor& tensor) {
    if (!is_wrapper(tensor)) return tensor;
    PyObject* name = of(tensor).attribute;
    if (name == nullptr) return {};
    Object wrapper(THPVariable_Wrap(tensor));
    Object held(PyObject_GetAttr(wrapper.get(), name));
    if (!is_ordinary_tensor(held.get())) return {};
    const at::Tensor inner = tensor_of(held.get());
    const bool stands_for_it = !is_wrapper(inner) && !inner.is_meta() && has_plain_storage(inner) && covers(inner) &&
                               inner.scalar_type() == tensor.scalar_type();
    return stands_for_it ? inner : at::Tensor();
  }

 private:
  static constexpr size_t kMost = 256;  // a test suite makes and forgets classes

  bool shows_its_ops(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has(c10::DispatchKey::Python) || memory_of(tensor) != nullptr) return false;
    return of(tensor).shows_its_ops;
  }

  // The GIL is not needed for a class that is known: somebody else may have it for long.
  TensorClass of(const at::Tensor& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (PyObject* object = object_in(impl->pyobj_slot(), 0)) {
      auto found = known_.find(Py_TYPE(object));
      if (found != known_.end() && found->second.version == Py_TYPE(object)->tp_version_tag) return found->second;
    }
    return ask(tensor);
  }

  TensorClass ask(const at::Tensor& tensor) {
    WithPython python;
    Object object(THPVariable_Wrap(tensor));
    Object answer = decoder_.ask("tensor_class", "O", object.get());
    TensorClass found;
    int shows_its_ops;
    PyObject* attribute;
    if (!PyArg_ParseTuple(answer.get(), "pO", &shows_its_ops, &attribute)) throw std::runtime_error(current_error());
    found.shows_its_ops = shows_its_ops;
    if (attribute != Py_None) found.attribute = Py_NewRef(attribute);  // there are one or two of them
    found.version = Py_TYPE(object.get())->tp_version_tag;
    if (known_.size() >= kMost) known_.clear();
    if (found.version != 0) known_[Py_TYPE(object.get())] = found;
    return found;
  }

  const Decoder& decoder_;
  ska::flat_hash_map<const PyTypeObject*, TensorClass> known_;
};

}  // namespace tensortap
