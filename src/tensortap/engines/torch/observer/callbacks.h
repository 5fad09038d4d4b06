// What PyTorch calls: around every operator, around every module, and when the gradient of a parameter is complete.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <mutex>

#include "observer.h"

namespace tensortap {

inline std::atomic<Observer*> only_observer{nullptr};  // while exactly one thread observes
inline std::atomic<int> observers_active{0};

inline Observer* observer_of(Thread& thread) {
  Observer* observer = thread.observer != nullptr ? thread.observer : only_observer.load(std::memory_order_acquire);
  if (observer == nullptr || observer->run.generation != process_generation.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return observer;
}

// Whether a thread is that of a collective, not of autograd: how it works is not the program's.
inline bool is_foreign(const Thread& thread) {
  return thread.observer == nullptr && torch::autograd::get_current_node() == nullptr;
}

// Our failure is never that of the program.
template <class Work>
void guarded(Thread& thread, Observer& observer, const char* where, Work work) {
  Busy busy(thread);
  std::lock_guard<SpinLock> hold(observer.lock);
  try {
    work();
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    observer.decoder.fault(where, error.what());
  } catch (...) {
    observer.decoder.fault(where, "unknown");
  }
}

inline std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  Thread& thread = this_thread();
  if (thread.starting != &fn) {
    thread.starting = &fn;
    thread.calls += 1;
  }
  if (thread.busy || thread.by_fallback) return nullptr;
  thread.depth += 1;
  if (thread.opaque_depth != 0) return nullptr;
  if (is_foreign(thread)) {
    thread.opaque_depth = thread.depth;
    thread.call.valid = false;
    return nullptr;
  }
  if (Observer* observer = observer_of(thread)) {
    guarded(thread, *observer, "before an operator",
            [&] { observer->start(thread, observer->operator_of(fn), fn.inputs()); });
  }
  return nullptr;
}

inline void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  Thread& thread = this_thread();
  thread.starting = nullptr;
  if (thread.busy || thread.by_fallback || thread.depth == 0) return;
  thread.depth -= 1;
  if (thread.opaque_depth != thread.depth + 1) return;
  thread.opaque_depth = 0;
  if (Observer* observer = observer_of(thread)) {
    guarded(thread, *observer, "after an operator", [&] { observer->end(thread, fn.outputs()); });
  }
}

inline at::CallbackHandle add_callback() {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_start, on_end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

// ---- hooks of modules and parameters. In C, because in Python two of them cost more than the op between. ----

inline Observer* observed_by(PyObject* self) {
  auto* observer = static_cast<Observer*>(PyLong_AsVoidPtr(self));
  Thread& thread = this_thread();
  const bool is_ours =
      thread.observer == observer && !thread.busy && !is_being_traced() && observer_of(thread) != nullptr;
  return is_ours ? observer : nullptr;
}

inline PyObject* on_enter_module(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Observer* observer = count >= 2 ? observed_by(self) : nullptr;
  if (observer != nullptr) {
    guarded(this_thread(), *observer, "entering a module",
            [&] { observer->scopes.enter_module(arguments[0], arguments[1]); });
  }
  Py_RETURN_NONE;
}

inline PyObject* on_leave_module(PyObject* self, PyObject* const*, Py_ssize_t) {
  Observer* observer = observed_by(self);
  if (observer != nullptr) observer->scopes.leave_module();
  Py_RETURN_NONE;
}

inline PyObject* on_gradient(PyObject* self, PyObject* parameter) {
  Observer* observer = observed_by(self);
  if (observer != nullptr) {
    guarded(this_thread(), *observer, "after a gradient", [&] { observer->record_gradient(parameter); });
  }
  Py_RETURN_NONE;
}

inline PyMethodDef gradient_definition = {"gradient", on_gradient, METH_O, nullptr};
inline PyMethodDef enter_definition = {
    "enter_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_enter_module)), METH_FASTCALL, nullptr};
inline PyMethodDef leave_definition = {
    "leave_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_leave_module)), METH_FASTCALL, nullptr};

}  // namespace tensortap
