// What Python calls, the GIL being held; see library.py. Only these plain C symbols are exported. All that the library is made of
// comes in by headers, as the headers of torch take longer to compile than all of it.

#include "typed_kernels.h"
#include "finite.h"
#include "samples.h"
#include "signature.h"

#include <pthread.h>

using namespace tensortap;

#define EXPORT extern "C" __attribute__((visibility("default")))

// What fails is told as a fault of ours; the answer is 0 then.
template <class Work>
int attempted(Observer* observer, const char* where, Work work) {
  WithPython python;
  try {
    return work();
  } catch (const std::exception& error) {
    observer->decoder.fault(where, error.what());
    return 0;
  }
}

void flush(Observer* observer, const char* where) {
  try {
    observer->recording.flush();
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    observer->decoder.fault(where, error.what());
  }
}

EXPORT int tt_reads_frames() { return TENSORTAP_READS_FRAMES; }

// ---- observers and plans ----

EXPORT Observer* tt_new(PyObject* decoder, const int8_t* dtype_codes, void* summarise, int const_label,
                        int as_strided_label) {
  static const int registered = pthread_atfork(nullptr, nullptr, in_forked_child);
  (void)registered;
  return new Observer(decoder, dtype_codes, reinterpret_cast<SummaryKernel>(summarise), {const_label, as_strided_label});
}

EXPORT void tt_delete(Observer* observer) { delete observer; }

EXPORT Plan* tt_new_plan() { return new Plan; }
EXPORT void tt_delete_plan(Plan* plan) { delete plan; }

// ---- a run: begin, start, stop, end ----

// Returns the thread as it was before, as a run may be inside another; `tt_end` puts it back.
EXPORT Thread* tt_begin(Observer* observer, Plan* plan, int watches, int keep_bad, int64_t index, int64_t nodes,
                        int64_t made, int64_t outside) {
  Thread& thread = this_thread();
  plan->watches = watches != 0;
  observer->begin_run(plan, keep_bad > 0);
  observer->run.index = index;
  if (nodes >= 0) observer->run.limits = {size_t(nodes), size_t(made), size_t(outside)};
  auto* outer = new Thread;
  std::swap(*outer, thread);
  thread.observer = observer;
  thread.run = observer->run.id;
  return outer;
}

EXPORT void tt_add_lane(Observer* observer, int kind, double lower, double upper, int mute_if_healthy) {
  observer->recording.add_lane({Lane::Kind(kind), lower, upper, mute_if_healthy != 0});
}

// Has PyTorch call us for every operator of this thread, outside of runs for nothing: a kernel of ours, or a callback of
// RecordFunction, if that is to be told of ops inside of ops. The handle of the callback is the answer, 0 for the kernel.
EXPORT uint64_t tt_install(Observer* observer, int needs_callback) {
  observer->is_fallback = !needs_callback && has_fallback();
  if (observer->is_fallback) {
    switch_on_fallback();
    return 0;
  }
  return add_callback();
}

EXPORT void tt_uninstall(uint64_t callback) {
  if (callback == 0) {
    switch_off_fallback();
  } else {
    at::removeCallback(callback);
  }
}

EXPORT void tt_start(Observer* observer, Thread*) {
  Thread& thread = this_thread();
  thread.by_fallback = observer->is_fallback;
  // A run may be inside an op of another.
  thread.was_excluded = thread.by_fallback && c10::impl::tls_is_dispatch_key_excluded(kFallbackKey);
  if (thread.was_excluded) c10::impl::tls_set_dispatch_key_excluded(kFallbackKey, false);
  only_observer.store(observers_active.fetch_add(1) == 0 ? observer : nullptr);
}

EXPORT void tt_stop(Observer* observer, Thread*) {
  observers_active.fetch_sub(1);
  only_observer.store(nullptr);
  Thread& thread = this_thread();
  if (thread.was_excluded) c10::impl::tls_set_dispatch_key_excluded(kFallbackKey, true);
  thread.was_excluded = false;
  Busy busy(thread);
  std::lock_guard<SpinLock> hold(observer->lock);
  flush(observer, "handing over the last records");
}

EXPORT void tt_end(Observer* observer, Thread* outer) {
  observer->end_run();
  Thread& thread = this_thread();
  std::swap(*outer, thread);
  thread.calls += outer->calls;  // of a run inside a run, which the profiler of the outer one has seen
  delete outer;
}

// Before a run ends: its nodes, operations over the limits, when ranks met, the bad values whose memory is free, and
// (value, run, value there) of those that came bad from earlier runs.
EXPORT PyObject* tt_outcome(Observer* observer) {
  const Run& run = observer->run;
  PyObject* nodes =
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(run.nodes.data()), Py_ssize_t(run.nodes.size() * sizeof(int32_t)));
  const long long unrecorded = run.unrecorded, met = run.met;
  try {
    BadValues& bad = observer->bad;
    bad.see_off();
    Object gone(PyList_New(0)), arrivals(PyList_New(0));
    for (Value value : bad.gone) {
      Object number(PyLong_FromLongLong(value));
      if (PyList_Append(gone.get(), number.get()) != 0) throw Interrupted();
    }
    for (const Arrival& arrival : bad.arrivals) {
      Object row(Py_BuildValue("(LLL)", (long long)arrival.value, (long long)arrival.run, (long long)arrival.origin));
      if (PyList_Append(arrivals.get(), row.get()) != 0) throw Interrupted();
    }
    return Py_BuildValue("(NLLOO)", nodes, unrecorded, met, gone.get(), arrivals.get());
  } catch (...) {
    PyErr_Clear();
    return Py_BuildValue("(NLL[][])", nodes, unrecorded, met);
  }
}

// Bad values that have outlived their run, and how an observer that takes the place of another gets them.
EXPORT PyObject* tt_survivors(Observer* observer) {
  const std::vector<Value> values = observer->bad.survivors();
  PyObject* list = PyList_New(Py_ssize_t(values.size()));
  for (size_t i = 0; list != nullptr && i < values.size(); ++i) {
    PyList_SET_ITEM(list, Py_ssize_t(i), PyLong_FromLongLong(values[i]));
  }
  return list;
}

EXPORT void tt_inherit(Observer* heir, Observer* observer, PyObject* values) {
  std::vector<Value> renamed;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) renamed.push_back(PyLong_AsLongLong(PyList_GET_ITEM(values, i)));
  heir->bad.inherit(observer->bad, renamed);
}

EXPORT void tt_trace(Observer* observer) { observer->run.traced = true; }
EXPORT int64_t tt_execution_count(Observer* observer) { return int64_t(observer->run.executions.size()); }
EXPORT const Execution* tt_executions(Observer* observer) { return observer->run.executions.data(); }

// What PyTorch is to call when a module is entered and left, and when the gradient of a parameter is complete.
EXPORT PyObject* tt_hooks(Observer* observer) {
  PyObject* self = PyLong_FromVoidPtr(observer);
  PyObject* hooks = Py_BuildValue("(NNN)", PyCFunction_New(&enter_definition, self),
                                  PyCFunction_New(&leave_definition, self), PyCFunction_New(&gradient_definition, self));
  Py_DECREF(self);
  return hooks;
}

EXPORT void tt_add_module(Observer* observer, int64_t module, int scope) {
  observer->scopes.add_module(reinterpret_cast<const void*>(module), scope);
}

EXPORT Scope* tt_scope(Observer* observer) { return &observer->scopes.outside_modules; }

EXPORT void tt_expect_state(Observer* observer, PyObject* state) { observer->scopes.expect_state(state); }
EXPORT void tt_step_in_frame(Observer* observer, PyObject* frame) { observer->scopes.step_in_frame(frame); }

EXPORT int tt_covers(int64_t tensor) {
  try {
    return covers(borrowed(tensor));
  } catch (...) {
    return 0;
  }
}

EXPORT int tt_next(Observer* observer, int scope, int label) {
  try {
    return observer->entries.next(scope, label);
  } catch (...) {
    return kNone;
  }
}

EXPORT int tt_reserve_entry(Observer* observer) { return observer->entries.reserve(); }

EXPORT int64_t tt_find(Observer* observer, int64_t tensor) {
  try {
    return observer->run.values.value_of(borrowed(tensor));
  } catch (...) {
    return kNoValue;
  }
}

// Whether a tensor lies in memory that an op of this run has made and nobody has written yet.
EXPORT int tt_is_unwritten(Observer* observer, int64_t tensor) {
  try {
    const Memory* memory = observer->run.values.memory_at(place_of(borrowed(tensor)));
    return memory != nullptr && memory->content == Content::kGarbage && memory->written_bytes == 0;
  } catch (...) {
    return 0;
  }
}

EXPORT int tt_add_source(Observer* observer, int64_t tensor, int entry, int node) {
  try {
    observer->add_source(borrowed(tensor), entry, node);
    return 1;
  } catch (...) {
    return 0;
  }
}

EXPORT void tt_add_parameter(Observer* observer, int64_t tensor, int index, int scope, int label, int leaf_scope) {
  observer->scopes.add_parameter(reinterpret_cast<const c10::TensorImpl*>(tensor), {index, scope, label, leaf_scope});
}

EXPORT void tt_forget_known(Observer* observer) {
  observer->known.forget();
  observer->scopes.forget_known();
}

EXPORT int tt_remember_known(Observer* observer, PyObject* roots, PyObject* parameters, PyObject* buffers) {
  return attempted(observer, "remembering modules", [&] {
    observer->known.remember_modules(roots, parameters, buffers);
    return 1;
  });
}

EXPORT int tt_name_known(Observer* observer, PyObject* roots, int has_hooks) {
  return attempted(observer, "naming parameters", [&] { return int(observer->known.name_modules(roots, has_hooks != 0)); });
}

EXPORT int tt_remember_state(Observer* observer, PyObject* optimizer, int scope, PyObject* parameters, PyObject* states) {
  return attempted(observer, "remembering an optimizer", [&] {
    observer->known.remember_state(optimizer, scope, parameters, states);
    return 1;
  });
}

EXPORT int tt_name_state(Observer* observer, PyObject* optimizer, int scope) {
  return attempted(observer, "naming the state of an optimizer", [&] { return int(observer->known.name_state(optimizer, scope)); });
}

EXPORT void tt_set_owner(Observer* observer, int64_t value, int owner) { observer->scopes.own(value, owner); }

EXPORT void tt_node_changed(Observer* observer, int node) { observer->node_changed(node); }

// From any thread: hands over what a run has gathered, in case it hangs. Not if its thread is at work itself; then the answer is 0.
EXPORT int tt_flush(Observer* observer) {
  std::unique_lock<SpinLock> hold(observer->lock, std::try_to_lock);
  if (!hold.owns_lock()) return 0;
  observer->recording.note_flush();
  if (observer->run.plan == nullptr) return 1;
  flush(observer, "handing over records");
  return 1;
}

// Packed pills as records and their values, in memory that is there for them. Not if they are damaged; then the answer is 0.
EXPORT int tt_unpack(const void* packed, int64_t count, const void* beside, int64_t beside_size, int64_t base, void* rows,
                     void* values, int64_t values_size) {
  return unpack_all(static_cast<const PackedPill*>(packed), size_t(count), static_cast<const char*>(beside), size_t(beside_size),
                    base, static_cast<Row*>(rows), static_cast<char*>(values), size_t(values_size));
}

// The number of the first tensor in a list that has a NaN or an infinity, -1 if none has. With gradients, twice that
// number, plus one if it is the gradient that has. What cannot be read as it lies in memory goes to `unread`, by number.
EXPORT int tt_first_not_finite(PyObject* tensors, int with_gradients, PyObject* unread) {
  try {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
      const at::Tensor tensor = tensor_of(PyList_GET_ITEM(tensors, i));
      const int number = with_gradients ? 2 * int(i) : int(i);
      if (with_gradients) {
        const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
        if (gradient.defined() && !note_finite(gradient, number + 1, unread)) return number + 1;
      }
      if (!note_finite(tensor, number, unread)) return number;
    }
  } catch (const std::exception&) {
    return -2;
  }
  return -1;
}

// Puts a sample of each tensor of a list, or of its gradient, behind what is in `samples` already, and its place there and its number
// of elements into `places`, at every `step`th pair; None is a tensor that is missing. Returns where the last one ends.
EXPORT int64_t tt_samples(PyObject* tensors, int of_gradients, int64_t most, double* samples, int64_t begin, int64_t* places, int64_t step) {
  int64_t end = begin;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    int64_t taken = kUnread;
    try {
      PyObject* item = PyList_GET_ITEM(tensors, i);
      const at::Tensor tensor = item == Py_None ? at::Tensor() : tensor_of(item);
      if (!tensor.defined()) {
        taken = kMissing;
      } else if (!of_gradients) {
        taken = take_sample(tensor, most, samples + end);
      } else {
        const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
        taken = gradient.defined() ? take_sample(gradient, most, samples + end) : kMissing;
      }
    } catch (const std::exception&) {
    }
    places[i * step] = end;
    places[i * step + 1] = taken;
    if (taken > 0) end += taken;
  }
  return end;
}

EXPORT void tt_measure(const SampledParameter* parameters, int64_t count, const double* samples, const uint8_t* own, Measured* found) {
  for (int64_t i = 0; i < count; ++i) found[i] = measure(parameters[i], samples, own[i] != 0);
}

// A list of the leaves that a backward pass from a tensor comes to; None if there is too much to walk.
EXPORT PyObject* tt_leaves(PyObject* outputs, int64_t most) {
  try {
    std::vector<torch::autograd::Node*> roots;
    std::vector<at::Tensor> leaves;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
      const at::Tensor output = tensor_of(PyList_GET_ITEM(outputs, i));
      if (const auto& node = output.grad_fn()) roots.push_back(node.get());
      else if (output.requires_grad()) leaves.push_back(output);
    }
    if (!find_leaves(std::move(roots), size_t(most), leaves)) Py_RETURN_NONE;
    Object list(PyList_New(Py_ssize_t(leaves.size())));
    for (size_t i = 0; i < leaves.size(); ++i) {
      PyList_SET_ITEM(list.get(), Py_ssize_t(i), Object(THPVariable_Wrap(leaves[i])).release());
    }
    return list.release();
  } catch (const std::exception&) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
}

// What tells whether modules hold what they held, and lists of tensors what they listed: a number, 0 if that cannot be told; and how
// many of the modules are not in training mode.
EXPORT PyObject* tt_signature(PyObject* roots, PyObject* lists) {
  try {
    Signature signature;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); ++i) signature.add_modules(PyList_GET_ITEM(roots, i));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists); ++i) signature.add_tensors(PyList_GET_ITEM(lists, i));
    return Py_BuildValue("Kn", (unsigned long long)signature.number(), Py_ssize_t(signature.still));
  } catch (const std::exception&) {
    PyErr_Clear();
    return Py_BuildValue("in", 0, Py_ssize_t(-1));
  }
}

// Of the gradient of each parameter: where it is, 0 if there is none that could be followed, and how often it was written.
EXPORT void tt_gradients(PyObject* parameters, int64_t* found) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i, found += 2) {
    found[0] = found[1] = 0;
    try {
      const at::Tensor parameter = tensor_of(PyList_GET_ITEM(parameters, i));
      const at::Tensor& gradient = parameter.unsafeGetTensorImpl()->grad();
      if (!gradient.defined() || gradient.is_sparse() || gradient.is_inference()) continue;
      found[0] = int64_t(gradient.unsafeGetTensorImpl());
      found[1] = int64_t(gradient._version());
    } catch (const std::exception&) {
      PyErr_Clear();
    }
  }
}

EXPORT void tt_forget_codes(Observer* observer) { observer->forget_codes(); }

#include "guarded_calls.h"
