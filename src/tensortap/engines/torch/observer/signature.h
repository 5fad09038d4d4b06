// Whether a program still has the parameters it had, in the same places: for those who look at all of them again and again.
#pragma once

#include <unordered_set>
#include <vector>

#include "known.h"
#include "values.h"

namespace tensortap {

class Signature {
 public:
  int64_t still = 0;  // modules that are not in training mode

  // 0 if something could not be looked into.
  uint64_t number() const { return is_known_ ? hash_ | 1 : 0; }

  void add_modules(PyObject* root) {
    std::vector<PyObject*> pending{root};
    while (!pending.empty()) {
      PyObject* module = pending.back();
      pending.pop_back();
      note(uint64_t(module));
      if (!seen_.insert(module).second) continue;
      static PyObject* const names[] = {PyUnicode_InternFromString("_parameters"), PyUnicode_InternFromString("_modules"),
                                        PyUnicode_InternFromString("training")};
      const Object attributes(PyObject_GenericGetDict(module, nullptr));
      PyObject* parameters = PyDict_GetItemWithError(attributes.get(), names[0]);
      PyObject* modules = PyDict_GetItemWithError(attributes.get(), names[1]);
      if (parameters == nullptr || modules == nullptr || !PyDict_Check(parameters) || !PyDict_Check(modules)) {
        is_known_ = false;  // as scripted modules are
        return;
      }
      still += PyDict_GetItemWithError(attributes.get(), names[2]) != Py_True;
      PyObject *key, *value;
      for (Py_ssize_t i = 0; PyDict_Next(parameters, &i, &key, &value);) {
        note(uint64_t(PyObject_Hash(key)));
        add_tensor(value);
      }
      for (Py_ssize_t i = 0; PyDict_Next(modules, &i, &key, &value);) {
        note(uint64_t(PyObject_Hash(key)));
        if (value != Py_None) pending.push_back(value);
      }
    }
  }

  void add_tensors(PyObject* list) {
    note(uint64_t(PyList_GET_SIZE(list)));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) add_tensor(PyList_GET_ITEM(list, i));
  }

 private:
  void note(uint64_t number) { hash_ = mix(hash_, number); }

  // What may change of one that stays the same object: its memory's type and shape, and whether it is trained.
  void add_tensor(PyObject* object) {
    note(uint64_t(object));
    if (!is_tensor(object)) return;
    const at::Tensor tensor = tensor_of(object);
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      is_known_ = false;
      return;
    }
    note(uint64_t(tensor.unsafeGetTensorImpl()) ^ uint64_t(tensor.requires_grad()) << 63);
    note(uint64_t(tensor.scalar_type()));
    for (int64_t size : tensor.sizes()) note(uint64_t(size));
  }

  uint64_t hash_ = 0;
  bool is_known_ = true;
  std::unordered_set<PyObject*> seen_;
};

}  // namespace tensortap
