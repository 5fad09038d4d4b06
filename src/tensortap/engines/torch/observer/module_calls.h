// Calls of modules, while the only hooks around them are ours.
//
// A global hook makes PyTorch take a slow way through every module: closures, sets and loops in Python, which take longer
// than a small op. `call_module` takes the place of `Module._call_impl` and does the same for a module without hooks of
// the program; any other goes the way it always went. `Outermost` is for whoever wants to hear only of calls from outside
// all modules: those inside are counted, and Python is not asked about them.
#pragma once

#include "root_calls.h"

namespace tensortap {
namespace module_calls {
namespace {

struct Hooks {
  PyObject *enter, *leave;
};

std::vector<Hooks> ours;        // in the order in which PyTorch calls them
PyObject* by_program = nullptr;  // Module._call_impl, as PyTorch or somebody else has made it
PyObject* entering = nullptr;   // PyTorch's dicts of global hooks
PyObject* leaving = nullptr;
PyObject* backward[2] = {};
PyObject* forward_name = nullptr;
PyObject* own_hooks[4] = {};  // names of a module's dicts of hooks

bool has_items(PyObject* dict, PyObject* name) {
  PyObject* hooks = PyDict_GetItemWithError(dict, name);  // borrowed
  return hooks == nullptr || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0;
}

bool has_only_ours(PyObject* dict) {
  if (PyDict_GET_SIZE(entering) != Py_ssize_t(ours.size()) || PyDict_GET_SIZE(leaving) != Py_ssize_t(ours.size()) ||
      PyDict_GET_SIZE(backward[0]) != 0 || PyDict_GET_SIZE(backward[1]) != 0) {
    return false;
  }
  for (PyObject* name : own_hooks) {
    if (has_items(dict, name)) return false;
  }
  return true;
}

// All hooks after a call; false if one has raised. They may change while they are called.
bool leave(PyObject* module, PyObject* positional, PyObject* result) {
  for (size_t i = 0; i < ours.size(); ++i) {
    PyObject* arguments[] = {module, positional, result};
    Object hook(Py_NewRef(ours[i].leave));
    PyObject* answer = PyObject_Vectorcall(hook.get(), arguments, 3, nullptr);
    if (answer == nullptr) return false;
    Py_DECREF(answer);
  }
  return true;
}

PyObject* call_quickly(PyObject* module, PyObject* const* arguments, size_t count, PyObject* keywords) {
  PyObject* forward = PyObject_GetAttr(module, forward_name);
  if (forward == nullptr) return nullptr;
  PyObject* positional = PyTuple_New(Py_ssize_t(count));
  PyObject* result = nullptr;
  bool entered = positional != nullptr;
  if (entered) {
    for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(positional, Py_ssize_t(i), Py_NewRef(arguments[i]));
    const std::vector<Hooks> hooks = ours;  // those that are there now, as PyTorch takes it
    for (const Hooks& each : hooks) Py_INCREF(each.enter);
    for (const Hooks& each : hooks) {
      PyObject* given[] = {module, positional};
      PyObject* answer = entered ? PyObject_Vectorcall(each.enter, given, 2, nullptr) : nullptr;
      entered = answer != nullptr;
      Py_XDECREF(answer);
      Py_DECREF(each.enter);
    }
  }
  if (entered) result = PyObject_Vectorcall(forward, arguments, count, keywords);
  // Hooks that the program has added meanwhile PyTorch would not call, either: without ours, it had gone the quick way.
  if (result != nullptr) {
    if (!leave(module, positional, result)) Py_CLEAR(result);
  } else if (entered && PyErr_ExceptionMatches(PyExc_Exception)) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!leave(module, positional, Py_None)) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
  }
  Py_XDECREF(positional);
  Py_DECREF(forward);
  return result;
}

PyObject* call_module(PyObject*, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  if (count > 0 && !ours.empty() && !at::tracer::impl::is_dispatch_enabled()) {
    PyObject* dict = PyObject_GenericGetDict(arguments[0], nullptr);
    if (dict == nullptr) return nullptr;
    const bool is_quick = has_only_ours(dict);
    PyObject* result =
        is_quick ? call_quickly(arguments[0], arguments + 1, size_t(count) - 1, keywords) : nullptr;
    Py_DECREF(dict);
    if (is_quick || PyErr_Occurred()) return result;
  }
  return PyObject_Vectorcall(by_program, arguments, size_t(count), keywords);
}

PyMethodDef call_definition = {"_call_impl", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_module)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};

PyObject* as_method(PyMethodDef* definition) {
  PyObject* function = PyCFunction_New(definition, nullptr);
  PyObject* method = function == nullptr ? nullptr : PyInstanceMethod_New(function);
  Py_XDECREF(function);
  return method;
}

// The hooks belong to a tuple: a bytearray that holds the numbers, what Python has called for an outermost call, and what
// notes those of which it need not hear.
Outermost* outermost_of(PyObject* self) {
  return reinterpret_cast<Outermost*>(PyByteArray_AS_STRING(PyTuple_GET_ITEM(self, 0)));
}

RootCalls* root_calls_of(PyObject* self) {
  return static_cast<RootCalls*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, 3), nullptr));
}

void delete_root_calls(PyObject* capsule) { delete static_cast<RootCalls*>(PyCapsule_GetPointer(capsule, nullptr)); }

PyObject* on_enter(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Outermost* calls = outermost_of(self);
  if (calls->is_inside()) {
    ++calls->depth;
    ++calls->modules;
    Py_RETURN_NONE;
  }
  if (count == 2 && root_calls_of(self)->takes(*calls, arguments[0], arguments[1])) Py_RETURN_NONE;
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, 1), arguments, size_t(count), nullptr);
}

PyObject* on_leave(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Outermost* calls = outermost_of(self);
  if (!calls->is_inside()) Py_RETURN_NONE;
  if (calls->depth > 1 || !calls->hears_leave) {
    --calls->depth;
    Py_RETURN_NONE;
  }
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, 2), arguments, size_t(count), nullptr);
}

PyMethodDef following[] = {
    {"enter_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_enter)), METH_FASTCALL, nullptr},
    {"leave_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_leave)), METH_FASTCALL, nullptr},
};

}  // namespace
}  // namespace module_calls
}  // namespace tensortap

// What takes the place of `Module._call_impl`; PyTorch's dicts of global hooks do not change.
EXPORT PyObject* tt_quick_calls(PyObject* usual, PyObject* dicts, PyObject* names) {
  using namespace tensortap::module_calls;
  Py_XSETREF(by_program, Py_NewRef(usual));
  PyObject** places[] = {&entering, &leaving, &backward[0], &backward[1]};
  for (Py_ssize_t i = 0; i < 4; ++i) {
    Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(dicts, i)));
    Py_XSETREF(own_hooks[i], Py_NewRef(PyTuple_GET_ITEM(names, i)));
  }
  if (forward_name == nullptr) forward_name = PyUnicode_InternFromString("forward");
  return as_method(&call_definition);
}

// Which of the global hooks are ours: pairs of what is called before and after a module, in their order.
EXPORT void tt_set_quick_hooks(PyObject* pairs) {
  using namespace tensortap::module_calls;
  std::vector<Hooks> before;
  before.swap(ours);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); ++i) {
    PyObject* pair = PyList_GET_ITEM(pairs, i);
    ours.push_back({Py_NewRef(PyTuple_GET_ITEM(pair, 0)), Py_NewRef(PyTuple_GET_ITEM(pair, 1))});
  }
  for (const Hooks& each : before) {
    Py_DECREF(each.enter);
    Py_DECREF(each.leave);
  }
}

// What notes calls of models that go on as their run does; see root_calls.h.
EXPORT PyObject* tt_root_calls(PyObject* facts) {
  using namespace tensortap::module_calls;
  return PyCapsule_New(new RootCalls(facts), nullptr, delete_root_calls);
}

EXPORT void tt_begin_root_calls(PyObject* self, int64_t suspected) {
  using namespace tensortap::module_calls;
  root_calls_of(self)->begin_run(*outermost_of(self), suspected);
}

EXPORT void tt_expect_root_call(PyObject* self, PyObject* module, PyObject* reference, int64_t unlooked) {
  tensortap::module_calls::root_calls_of(self)->expect(module, reference, unlooked);
}

EXPORT int64_t tt_passed_root_calls(PyObject* self, PyObject* module) {
  return tensortap::module_calls::root_calls_of(self)->passed(module);
}

EXPORT PyObject* tt_take_root_calls(PyObject* self) { return tensortap::module_calls::root_calls_of(self)->take(); }

// Hooks for the calls of modules, for such a tuple.
EXPORT PyObject* tt_outermost_calls(PyObject* self) {
  using namespace tensortap::module_calls;
  return Py_BuildValue("(NN)", PyCFunction_New(&following[0], self), PyCFunction_New(&following[1], self));
}
