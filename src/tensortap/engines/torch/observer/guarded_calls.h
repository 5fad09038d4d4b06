// Calls of models in runs that are only guarded. `call_guarded` takes the place of `Module._call_impl`: it looks at what models return that
// are called without gradients, and leaves what leads to a step to the look at the step. Python hears of calls that may end a unit of the
// program, and of results that are not plainly finite; of what modules call inside of them, nobody does.
#pragma once

#include "finite.h"
#include "module_calls.h"

#include <c10/core/GradMode.h>

#include <ctime>

namespace tensortap {
namespace module_calls {
namespace {

// Shared with Python, which reads and writes it.
struct Gate {
  uint64_t thread;   // whose calls are looked at; 0 for nobody's
  int64_t depth;     // calls of models that are being looked at
  int64_t quiet;     // calls without gradients of which Python wants to hear nothing
  int64_t trains;    // whether there is an optimizer
  int64_t stepped;   // whether one has stepped: the next call that trains belongs to another run
  int64_t leads;     // a model was called to be trained; nothing is looked at before the step
  int64_t own_ns;    // how long looking took
};

Gate gate = {};
PyObject* tell = nullptr;     // has the hooks in Python hear of a call
PyObject* look_at = nullptr;  // looks at what a model returned
PyObject* training_name = nullptr;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

bool is_training(PyObject* module) {
  PyObject* dict = PyObject_GenericGetDict(module, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return false;
  }
  PyObject* value = PyDict_GetItemWithError(dict, training_name);  // borrowed
  const bool trains = value == Py_True;
  Py_DECREF(dict);
  return trains;
}

// Whether what a model returned is plainly finite; what is not known well enough is left to Python.
bool is_plainly_finite(PyObject* value, int depth) {
  if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) return true;
  if (is_tensor(value)) return is_finite(tensor_of(value)) == 1;
  if (depth == 0) return true;
  if (PyTuple_Check(value) || PyList_Check(value)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!is_plainly_finite(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return false;
    }
    return true;
  }
  if (PyDict_Check(value)) {
    Py_ssize_t place = 0;
    PyObject *key, *item;
    while (PyDict_Next(value, &place, &key, &item)) {
      if (!is_plainly_finite(item, depth - 1)) return false;
    }
    return true;
  }
  return false;
}

bool looks_fine(PyObject* result) {
  const int64_t began = now_ns();
  bool fine = false;
  try {
    fine = is_plainly_finite(result, 4);
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  gate.own_ns += now_ns() - began;
  return fine;
}

bool has_hooks(PyObject* module) {
  if (PyDict_GET_SIZE(entering) + PyDict_GET_SIZE(leaving) + PyDict_GET_SIZE(backward[0]) + PyDict_GET_SIZE(backward[1]) != 0) return true;
  PyObject* dict = PyObject_GenericGetDict(module, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return true;
  }
  bool found = false;
  for (PyObject* name : own_hooks) found = found || has_items(dict, name);
  Py_DECREF(dict);
  return found;
}

// What PyTorch does with a module that has no hooks, or whatever it does.
PyObject* pass(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  if (at::tracer::impl::is_dispatch_enabled() || has_hooks(arguments[0])) {
    return PyObject_Vectorcall(by_program, arguments, size_t(count), keywords);
  }
  PyObject* forward = PyObject_GetAttr(arguments[0], forward_name);
  if (forward == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(forward, arguments + 1, size_t(count) - 1, keywords);
  Py_DECREF(forward);
  return result;
}

PyObject* call_and_tell(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords, bool leads) {
  PyObject* told = PyObject_CallNoArgs(tell);
  if (told == nullptr) return nullptr;
  Py_DECREF(told);
  ++gate.depth;
  PyObject* result = PyObject_Vectorcall(by_program, arguments, size_t(count), keywords);
  --gate.depth;
  if (leads) gate.leads = 1;
  return result;
}

PyObject* call_guarded(PyObject*, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  if (count == 0) return PyObject_Vectorcall(by_program, arguments, size_t(count), keywords);
  if (gate.depth > 0 || gate.leads != 0 || gate.thread != PyThread_get_thread_ident()) return pass(arguments, count, keywords);
  const bool leads = gate.trains != 0 && c10::GradMode::is_enabled() && is_training(arguments[0]);
  if (leads && gate.stepped == 0) {
    gate.leads = 1;
    return pass(arguments, count, keywords);
  }
  if (leads || gate.quiet <= 0) return call_and_tell(arguments, count, keywords, leads);
  --gate.quiet;
  ++gate.depth;
  PyObject* result = pass(arguments, count, keywords);
  --gate.depth;
  if (result != nullptr && !looks_fine(result)) {
    PyObject* looked = PyObject_CallFunctionObjArgs(look_at, arguments[0], result, nullptr);
    if (looked == nullptr) Py_CLEAR(result);
    Py_XDECREF(looked);
  }
  return result;
}

PyMethodDef guarded_definition = {"_call_impl", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_guarded)),
                                  METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace
}  // namespace module_calls
}  // namespace tensortap

EXPORT void* tt_gate() { return &tensortap::module_calls::gate; }

// What takes the place of `Module._call_impl` in guarded runs, after `tt_quick_calls` has said what the usual one is.
EXPORT PyObject* tt_guarded_calls(PyObject* telling, PyObject* looking) {
  using namespace tensortap::module_calls;
  Py_XSETREF(tell, Py_NewRef(telling));
  Py_XSETREF(look_at, Py_NewRef(looking));
  if (training_name == nullptr) training_name = PyUnicode_InternFromString("training");
  return as_method(&guarded_definition);
}
