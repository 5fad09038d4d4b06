// Tensors from outside a run that were there in the run before, too: parameters and buffers of modules, the state of optimizers.
// Python names them once. Afterwards their containers are compared with what they held then, which takes nanoseconds;
// only a difference is for Python again. Names go by the place in the containers, so an object that was replaced by
// another in the same place keeps its name.
//
// Nothing here is a reference. An object may be looked at only while its container, looked at before, shows that it is there.
#pragma once

#include "python.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

// Of libtorch_python, see python.h.
__attribute__((visibility("default"))) extern PyObject* THPVariableClass;

namespace tensortap {

inline bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

// Whether something is a tensor of no class of its own, which stands for itself.
inline bool is_ordinary_tensor(PyObject* object) {
  return Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(THPVariableClass);
}

inline at::Tensor borrowed(int64_t address) {
  auto* impl = reinterpret_cast<c10::TensorImpl*>(address);
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

inline at::Tensor tensor_of(PyObject* object) {
  static PyObject* const name = PyUnicode_InternFromString("_cdata");
  return borrowed(Object(PyObject_GetAttr(object, name)).number());
}

inline Object attribute(PyObject* object, const char* name) { return Object(PyObject_GetAttrString(object, name)); }

// A name that Python has given.
struct Named {
  int32_t entry = -1, node = -1;
  uint64_t spec = 0;
};

struct KnownParameter {
  PyObject* object;
  const void* impl;
  Named value, gradient;
  bool is_trained;
  const void* hooks;  // PyTorch's own object behind the hooks of a parameter; ours are among them
};

struct KnownBuffer {
  PyObject* object;
  Named value;
};

// The modules of a program and what they hold.
class KnownModules {
 public:
  std::vector<KnownParameter> parameters;
  std::vector<KnownBuffer> buffers;

  void forget() {
    is_known_ = false;
    roots_.clear();
    modules_.clear();
    parameters.clear();
    buffers.clear();
  }

  // Takes note of what the modules hold now; `parameters` and `buffers` have been filled.
  void remember(PyObject* roots) {
    modules_.clear();
    roots_.clear();
    is_known_ = true;
    std::unordered_set<PyObject*> seen;
    std::unordered_map<PyObject*, int32_t> places;  // of buffers that no module is known to hold yet
    for (size_t i = 0; i < buffers.size(); ++i) places[buffers[i].object] = int32_t(i);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); ++i) {
      roots_.push_back(PyList_GET_ITEM(roots, i));
      add(PyList_GET_ITEM(roots, i), seen, places);
    }
  }

  bool is_unchanged(PyObject* roots) {
    if (!is_known_ || PyList_GET_SIZE(roots) != Py_ssize_t(roots_.size())) return false;
    for (size_t i = 0; i < roots_.size(); ++i) {
      if (PyList_GET_ITEM(roots, Py_ssize_t(i)) != roots_[i]) return false;
    }
    for (const Module& each : modules_) {
      if (!is_unchanged(each)) return false;
    }
    return true;
  }

 private:
  struct Item {
    PyObject *key, *value;
    int32_t buffer;  // its place in `buffers`, where another tensor may come at any time; -1 for anything else
  };
  struct Module {
    PyObject* object;
    std::vector<Item> parameters, buffers, modules;
  };

  void add(PyObject* module, std::unordered_set<PyObject*>& seen, std::unordered_map<PyObject*, int32_t>& places) {
    if (!seen.insert(module).second) return;
    Module found{module, items_of(module, "_parameters"), items_of(module, "_buffers"), items_of(module, "_modules")};
    for (Item& item : found.buffers) {
      auto place = places.find(item.value);
      if (place == places.end()) continue;
      item.buffer = place->second;
      places.erase(place);
    }
    const auto inner = found.modules;
    modules_.push_back(std::move(found));
    for (const Item& each : inner) {
      if (each.value != Py_None) add(each.value, seen, places);
    }
  }

  std::vector<Item> items_of(PyObject* module, const char* name) {
    const Object held = attribute(module, name);
    std::vector<Item> items;
    if (!PyDict_Check(held.get())) {  // of a scripted module: it is asked anew in every run
      is_known_ = false;
      return items;
    }
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(held.get(), &i, &key, &value);) items.push_back({key, value, -1});
    return items;
  }

  bool is_unchanged(const Module& module) {
    const Object held(PyObject_GenericGetDict(module.object, nullptr));
    static PyObject* const names[] = {PyUnicode_InternFromString("_parameters"), PyUnicode_InternFromString("_buffers"),
                                      PyUnicode_InternFromString("_modules")};
    return holds(held.get(), names[0], module.parameters) && holds(held.get(), names[1], module.buffers) &&
           holds(held.get(), names[2], module.modules);
  }

  bool holds(PyObject* module, PyObject* name, const std::vector<Item>& items) {
    PyObject* held = PyDict_GetItemWithError(module, name);
    if (held == nullptr || !PyDict_Check(held) || PyDict_GET_SIZE(held) != Py_ssize_t(items.size())) return false;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    for (const Item& item : items) {
      if (!PyDict_Next(held, &at, &key, &value) || key != item.key) return false;
      if (item.buffer >= 0 && is_ordinary_tensor(value)) {
        buffers[size_t(item.buffer)].object = value;
      } else if (value != item.value) {
        return false;
      }
    }
    return true;
  }

  bool is_known_ = false;
  std::vector<PyObject*> roots_;
  std::vector<Module> modules_;  // each one after a module that holds it
};

// The state of one optimizer.
class KnownState {
 public:
  struct Item {
    PyObject* key;
    bool is_tensor;
    Named value;
    PyObject* object;
    const PyTypeObject* type;
  };
  struct Parameter {
    PyObject* object;
    int32_t owner;
    Named value;  // of a parameter that belongs to no module
  };
  struct State {
    PyObject* parameter;
    int32_t owner;
    std::vector<Item> items;
  };
  std::vector<Parameter> parameters;
  std::vector<State> states;

  // Whether the optimizer has the same parameters, and state under the same keys.
  bool is_unchanged(PyObject* optimizer) {
    const Object groups = attribute(optimizer, "param_groups"), state = attribute(optimizer, "state");
    if (!PyList_Check(groups.get()) || !PyDict_Check(state.get())) return false;
    static PyObject* const params = PyUnicode_InternFromString("params");
    size_t place = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(groups.get()); ++i) {
      PyObject* group = PyList_GET_ITEM(groups.get(), i);
      PyObject* listed = PyDict_Check(group) ? PyDict_GetItemWithError(group, params) : nullptr;
      if (listed == nullptr || !PyList_Check(listed)) return false;
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(listed); ++j, ++place) {
        if (place >= parameters.size() || PyList_GET_ITEM(listed, j) != parameters[place].object) return false;
      }
    }
    if (place != parameters.size() || PyDict_GET_SIZE(state.get()) != Py_ssize_t(states.size())) return false;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    for (State& each : states) {
      if (!PyDict_Next(state.get(), &at, &key, &value) || key != each.parameter || !holds(value, each)) return false;
    }
    return true;
  }

 private:
  static bool is_like(PyObject* value, const Item& item) {
    return is_ordinary_tensor(value) || (Py_TYPE(value) == item.type && is_tensor(value));
  }

  static bool holds(PyObject* held, State& state) {
    if (!PyDict_Check(held) || PyDict_GET_SIZE(held) != Py_ssize_t(state.items.size())) return false;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    for (Item& item : state.items) {
      if (!PyDict_Next(held, &at, &key, &value) || key != item.key) return false;
      if (item.is_tensor ? !is_like(value, item) : is_tensor(value)) return false;
      item.object = value;
    }
    return true;
  }
};

}  // namespace tensortap
