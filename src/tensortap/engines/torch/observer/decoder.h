// Asking decoder.py: the one way to Python, for what is new. Its methods are the questions.
#pragma once

#include "python.h"

namespace tensortap {

class Decoder {
 public:
  explicit Decoder(PyObject* object) : object_(object) {}

  // The answer, for somebody who holds the GIL.
  template <class... Arguments>
  Object ask(const char* question, const char* format, Arguments... arguments) const {
    return Object(PyObject_CallMethod(object_, question, format, arguments...));
  }

  template <class... Arguments>
  int64_t number(const char* question, const char* format, Arguments... arguments) const {
    WithPython python;
    return ask(question, format, arguments...).number();
  }

  // Expects no answer.
  template <class... Arguments>
  void tell(const char* what, const char* format = nullptr, Arguments... arguments) const {
    WithPython python;
    ask(what, format, arguments...);
  }

  // Something of ours has failed: it is counted, and the program goes on.
  void fault(const char* where, const char* what) const noexcept {
    try {
      WithPython python;
      PyObject* result = PyObject_CallMethod(object_, "fault", "ss", where, what);
      if (result == nullptr) PyErr_Clear();
      Py_XDECREF(result);
    } catch (...) {
    }
  }

 private:
  PyObject* object_;  // borrowed: it owns the observer
};

}  // namespace tensortap
