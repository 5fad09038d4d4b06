// Calling back into Python, for what is new. Everything else happens without it.
#pragma once

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "communication.h"

// Of libtorch_python; its own header would bring in pybind11 and a minute of compilation.
__attribute__((visibility("default"))) PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace tensortap {

// Holds the GIL, and keeps an exception that is on its way from being lost.
class WithPython {
 public:
  WithPython() : state_(PyGILState_Ensure()) {
    PyErr_Fetch(&type_, &value_, &traceback_);
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      modes_ = c10::impl::TorchDispatchModeTLS::get_state();
      c10::impl::TorchDispatchModeTLS::set_state({});
    }
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::ALL_DISABLED);
  }
  ~WithPython() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_);
    if (modes_.has_value()) c10::impl::TorchDispatchModeTLS::set_state(std::move(*modes_));
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(state_);
  }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;

 private:
  PyGILState_STATE state_;
  PyObject *type_, *value_, *traceback_;
  // What Python does with tensors must not become part of anybody's autograd graph, nor be seen by modes of the user.
  c10::impl::ExcludeDispatchKeyGuard below_autograd_{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  std::optional<c10::impl::TorchDispatchModeTLS> modes_;
  at::impl::TorchFunctionDisabledState functions_{at::impl::PythonTorchFunctionTLS::get_disabled_state()};
};

// Thrown when a signal handler has raised in the middle of our work, such as Ctrl-C. That is for the program.
struct Interrupted : std::exception {};

inline int raise_later(void* exception) {
  auto* value = static_cast<PyObject*>(exception);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

// The text of the exception that is set, which is cleared.
inline std::string current_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value != nullptr && !PyErr_GivenExceptionMatches(value, PyExc_Exception)) {
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    // The interpreter raises it as soon as it executes the program's own code again.
    if (Py_AddPendingCall(raise_later, value) != 0) Py_DECREF(value);
    throw Interrupted();
  }
  std::string text = "a callback failed";
  PyObject* shown = value == nullptr ? nullptr : PyObject_Repr(value);
  const char* characters = shown == nullptr ? nullptr : PyUnicode_AsUTF8(shown);
  if (characters != nullptr) text = characters;
  PyErr_Clear();
  Py_XDECREF(shown);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return text;
}

// An owned reference.
class Object {
 public:
  explicit Object(PyObject* object) : object_(object) {
    if (object == nullptr) throw std::runtime_error(current_error());
  }
  ~Object() { Py_XDECREF(object_); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  int64_t number() const {
    const int64_t result = PyLong_AsLongLong(object_);
    if (result == -1 && PyErr_Occurred()) throw std::runtime_error(current_error());
    return result;
  }

 private:
  PyObject* object_;
};

template <class Numbers>
PyObject* number_tuple(const Numbers& numbers) {
  Object tuple(PyTuple_New(Py_ssize_t(numbers.size())));
  for (size_t i = 0; i < size_t(numbers.size()); ++i) {
    PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), Object(PyLong_FromLongLong(numbers[i])).release());
  }
  return tuple.release();
}

inline bool is_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

inline PyObject* number_of(const at::Tensor& tensor) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case c10::kDouble: return PyFloat_FromDouble(*static_cast<const double*>(data));
    case c10::kFloat: return PyFloat_FromDouble(*static_cast<const float*>(data));
    case c10::kLong: return PyLong_FromLongLong(*static_cast<const int64_t*>(data));
    case c10::kBool: return PyBool_FromLong(*static_cast<const bool*>(data));
    case c10::kComplexDouble: {
      const auto* number = static_cast<const c10::complex<double>*>(data);
      return PyComplex_FromDoubles(number->real(), number->imag());
    }
    default: return THPVariable_Wrap(tensor);
  }
}

// An argument as Python can read it. Enumerations (dtype, layout, memory format) arrive as their number and devices
// as their name; the schema tells which is which. Groups of ranks come by their name; what else has a life of its own is
// an Ellipsis, an undefined tensor NotImplemented.
inline PyObject* to_python(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {  // is not the same as left out
      Py_INCREF(Py_NotImplemented);
      return Py_NotImplemented;
    }
    return is_number(tensor) ? number_of(tensor) : THPVariable_Wrap(tensor);
  }
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return PyComplex_FromDoubles(number.real(), number.imag());
  }
  if (value.isString()) {
    const auto& text = value.toStringRef();
    return PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace");
  }
  if (value.isDevice()) return PyUnicode_FromString(value.toDevice().str().c_str());
  if (value.isList()) {
    const auto items = value.toListRef();
    Object list(PyList_New(Py_ssize_t(items.size())));
    for (size_t i = 0; i < items.size(); ++i) {
      PyList_SET_ITEM(list.get(), Py_ssize_t(i), Object(to_python(items[i])).release());
    }
    return list.release();
  }
  const std::string text = communication_text(value);
  if (!text.empty()) return PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace");
  Py_INCREF(Py_Ellipsis);
  return Py_Ellipsis;
}

}  // namespace tensortap
