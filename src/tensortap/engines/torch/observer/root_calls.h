// Calls of models from outside all modules that change nothing about the run they are in. Python decides where runs end
// (follow/present_run.py); what it would find out about a call like those before is found out here, and the call is noted
// for Python to hear of when it next has something to do. Whatever is not plainly so is left to Python.
#pragma once

#include "observer.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <c10/core/GradMode.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <ctime>
#include <vector>

namespace tensortap {
namespace module_calls {

constexpr int kFramesLookedAt = 38;  // as in data_loading.py, but for two of ours
constexpr int kUnheardCalls = 16;    // that share a run, before bad values of them are handed over, to be heard of soon

// Shared with Python, which reads and writes it.
struct Outermost {
  uint64_t thread;      // whose calls are counted; none in a forked child
  int64_t depth;        // modules that are being called, each by the one before
  int64_t modules;      // calls so far
  int64_t hears_leave;  // whether Python wants to hear of the end of the outermost call, too
  // Of the present run, as PresentRun has it:
  int64_t goes_on;    // whether it is open, and nothing has happened that ends it before the next call
  int64_t calls;      // of models
  int64_t models;     // that were called
  int64_t trains;     // whether one was called to be trained
  int64_t shared;     // how many calls without gradients it began with
  int64_t suspected;  // how many runs were, when it began
  // Of every run, as present_run.py has them:
  int64_t most_calls;
  int64_t most_shared_calls;
  int64_t shared_modules;
  int64_t modules_a_call;

  bool is_inside() const { return depth > 0 && PyThread_get_thread_ident() == thread; }
};

inline bool is_named(PyObject* name, PyObject* wanted) {
  return name == wanted || (PyUnicode_GET_LENGTH(name) == PyUnicode_GET_LENGTH(wanted) && PyUnicode_Compare(name, wanted) == 0);
}

inline bool has(PyObject* object, PyObject* name, int64_t number) {
  PyObject* found = PyObject_GetAttr(object, name);
  const bool is_so = found != nullptr && PyLong_AsLongLong(found) == number;
  Py_XDECREF(found);
  if (PyErr_Occurred()) PyErr_Clear();
  return is_so;
}

class RootCalls {
 public:
  // What decides besides, asked when it matters: (optimizers by identity, limits of runs, what was seen, modules that are
  // imported, the one that has compiled functions stay so, the file that fetches data, the module of pipelines, whether
  // something else than NaN and infinities is looked for).
  explicit RootCalls(PyObject* facts) : facts_(Py_NewRef(facts)) {
    const char* texts[] = {"training", "reached", "suspected", "__getitem__"};
    for (int i = 0; i < 4; ++i) names_[i] = PyUnicode_InternFromString(texts[i]);
  }
  ~RootCalls() {
    for (auto& each : known_) Py_DECREF(each.second.reference);
    for (PyObject* each : names_) Py_XDECREF(each);
    Py_DECREF(facts_);
  }
  RootCalls(const RootCalls&) = delete;
  RootCalls& operator=(const RootCalls&) = delete;

  // Whether the call is part of the present run, and all there is to do about it is done.
  bool takes(Outermost& now, PyObject* module, PyObject* arguments) {
    if (now.goes_on == 0 || PyThread_get_thread_ident() != now.thread) return false;
    if (at::tracer::impl::is_dispatch_enabled() || torch::autograd::get_current_node()) return false;
    if (at::impl::torch_function_mode_enabled()) return false;  // a mode of the program would see what is asked of tensors here
    Model* model = known(module);
    const int training = model == nullptr ? -1 : is_training(module);
    if (training < 0) return false;
    const bool has_gradients = c10::GradMode::is_enabled(), has_optimizers = PyDict_GET_SIZE(fact(0)) > 0;
    const bool trains = has_gradients && has_optimizers && training, shares = !has_gradients && has_optimizers;
    if (now.calls >= now.most_calls || (!trains && model->unlooked == 0)) return false;
    if (now.trains == 0) {
      if (model->run == run_ && !(shares && may_share(now))) return false;
      if (trains && now.calls > now.models) return false;
    }
    if (now.calls == 0 && !has(fact(1), names_[1], 0)) return false;
    if (has_optimizers && PyDict_Contains(fact(3), fact(4)) != 0) return false;
    if (is_loading_data() || PyDict_Contains(fact(3), fact(6)) != 0 || !is_plainly_written(arguments, 4)) return false;
    note(now, *model, module, trains, shares);
    return true;
  }

  void begin_run(Outermost& now, int64_t suspected) {
    ++run_;
    unheard_ = 0;
    now.calls = now.models = now.trains = now.shared = 0;
    now.suspected = suspected;
    now.goes_on = 1;
  }

  // Python knows the model, and has noted a call of it; so many that follow and train nothing need not be looked at.
  void expect(PyObject* module, PyObject* reference, int64_t unlooked) {
    if (known_.size() > 2 * living_ + 64) forget_dead();
    Model& model = known_[module];
    Py_XSETREF(model.reference, Py_NewRef(reference));
    model.run = run_;
    model.unlooked = unlooked;
  }

  // How many calls of a model that train nothing were noted here since Python asked last.
  int64_t passed(PyObject* module) {
    Model* model = known(module);
    const int64_t number = model == nullptr ? 0 : model->passed;
    if (model != nullptr) model->passed = 0;
    return number;
  }

  // (models, calls, whether one was to be trained, times of those that share the run) since Python asked last.
  PyObject* take() {
    PyObject* noted = nullptr;
    if (calls_ == 0) {
      noted = Py_NewRef(Py_None);
    } else {
      try {
        Object models(number_tuple(models_)), times(number_tuple(times_));
        noted = Py_BuildValue("(OLOO)", models.get(), (long long)calls_, trains_ ? Py_True : Py_False, times.get());
      } catch (const std::exception&) {
        PyErr_SetString(PyExc_MemoryError, "calls of models could not be told");
      }
    }
    models_.clear();
    times_.clear();
    calls_ = 0;
    trains_ = false;
    return noted;
  }

 private:
  struct Model {
    PyObject* reference = nullptr;  // weak
    int64_t run = -1;               // in which it was called last
    int64_t unlooked = 0, passed = 0;
  };

  PyObject* fact(Py_ssize_t i) const { return PyTuple_GET_ITEM(facts_, i); }

  Model* known(PyObject* module) {
    auto found = known_.find(module);
    return found != known_.end() && PyWeakref_GET_OBJECT(found->second.reference) == module ? &found->second : nullptr;
  }

  void forget_dead() {
    for (auto each = known_.begin(); each != known_.end();) {
      if (PyWeakref_GET_OBJECT(each->second.reference) == Py_None) {
        Py_DECREF(each->second.reference);
        each = known_.erase(each);
      } else {
        ++each;
      }
    }
    living_ = known_.size();
  }

  // -1 if that is not plainly so or not.
  int is_training(PyObject* module) const {
    PyObject* dict = PyObject_GenericGetDict(module, nullptr);
    PyObject* value = dict == nullptr ? nullptr : PyDict_GetItemWithError(dict, names_[0]);  // borrowed
    const int answer = value == Py_True ? 1 : value == Py_False ? 0 : -1;
    Py_XDECREF(dict);
    if (PyErr_Occurred()) PyErr_Clear();
    return answer;
  }

  bool may_share(const Outermost& now) {
    if (unheard_ >= kUnheardCalls) hand_over();
    return now.shared == now.calls && now.calls < now.most_shared_calls &&
           now.modules + 1 < now.shared_modules + now.calls * now.modules_a_call && has(fact(2), names_[2], now.suspected);
  }

  void hand_over() {
    unheard_ = 0;
    Observer* observer = this_thread().observer;
    if (observer == nullptr) return;
    std::unique_lock<SpinLock> hold(observer->lock, std::try_to_lock);
    if (!hold.owns_lock() || !(observer->recording.has_bad() || fact(7) == Py_True)) return;
    flush(observer, "handing over records");
  }

  bool is_loading_data() const {
    const Frame* frame = current_frame();
    if (frame == nullptr) return true;  // nobody knows
    for (int i = 0; i < kFramesLookedAt && frame != nullptr; ++i, frame = frame->previous) {
      if (frame->code == nullptr || !PyCode_Check(frame->code)) continue;
      const auto* code = reinterpret_cast<PyCodeObject*>(frame->code);
      if (is_named(code->co_name, names_[3]) || is_named(code->co_filename, fact(5))) return true;
    }
    return false;
  }

  // Whether no tensor among these can be memory as it was found: such a call may only rehearse (follow/rehearsals.py).
  static bool is_plainly_written(PyObject* value, int depth) {
    if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) return true;
    if (is_tensor(value)) {
      Observer* observer = this_thread().observer;
      if (observer == nullptr || !is_ordinary_tensor(value)) return false;
      try {
        const at::Tensor tensor = tensor_of(value);
        if (is_wrapper(tensor)) return false;
        const Memory* memory = observer->run.values.memory_at(place_of(tensor));
        return memory == nullptr || memory->content != Content::kGarbage || memory->written_bytes != 0;
      } catch (const std::exception&) {
        return false;
      }
    }
    if (depth == 0 || !(PyTuple_CheckExact(value) || PyList_CheckExact(value))) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      if (!is_plainly_written(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return false;
    }
    return true;
  }

  void note(Outermost& now, Model& model, PyObject* module, bool trains, bool shares) {
    if (shares && now.shared == now.calls) {
      timespec time;
      clock_gettime(CLOCK_REALTIME, &time);
      times_.push_back(int64_t(time.tv_sec) * 1000000 + time.tv_nsec / 1000);
      ++now.shared;
      ++unheard_;
    }
    if (model.run != run_) {
      model.run = run_;
      models_.push_back(int64_t(reinterpret_cast<uintptr_t>(module)));
      ++now.models;
    }
    if (trains) {
      now.trains = trains_ = true;
    } else {
      --model.unlooked;
      ++model.passed;
    }
    ++now.calls;
    ++calls_;
    now.depth = 1;
    ++now.modules;
  }

  PyObject* facts_;
  PyObject* names_[4] = {};
  ska::flat_hash_map<PyObject*, Model> known_;
  size_t living_ = 0;
  int64_t run_ = 0;
  int unheard_ = 0;
  // Noted, and not told:
  std::vector<int64_t> models_, times_;
  int64_t calls_ = 0;
  bool trains_ = false;
};

}  // namespace module_calls
}  // namespace tensortap
