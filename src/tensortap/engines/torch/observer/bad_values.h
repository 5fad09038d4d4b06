// Bad values of a run: who made them, and what becomes of them when it is over.
#pragma once

#include <algorithm>
#include <vector>

#include "calls.h"
#include "nodes.h"
#include "recording.h"
#include "run.h"

namespace tensortap {

// A tensor that came bad from outside, and the run and value it is from.
struct Arrival {
  Value value;
  int64_t run;
  Value origin;
};

class BadValues {
 public:
  BadValues(const Decoder& decoder, const NodeVersions& versions, Recording& recording, Run& run)
      : decoder_(decoder), versions_(versions), recording_(recording), run_(run) {}

  std::vector<Arrival> arrivals;
  std::vector<Value> gone;  // values whose memory is free

  void begin_run(bool are_sought) {
    are_sought_ = are_sought;
    kinds_.clear();
    arrivals.clear();
    gone.clear();
  }

  // Whether their making is to be shown.
  bool are_sought() const { return are_sought_; }

  void note(Value value, int kinds) {
    if (kinds <= 0) return;
    kinds_[value] = kinds;
    run_.values.keep_gone();  // what has become of it is told at the end of the run
  }

  // A tensor from outside has come bad: if it was made so in an earlier run, that is where it comes from.
  void note_arrival(Value value, const at::Tensor& tensor) {
    if (survivors_.empty() || !has_plain_storage(tensor)) return;
    auto found = survivors_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != survivors_.end()) arrivals.push_back({value, found->second.run, found->second.value});
  }

  int kinds_of_inputs(const Call& call) const {
    int kinds = 0;
    if (kinds_.empty()) return kinds;
    for (Value value : call.inputs) {
      auto found = kinds_.find(value);
      if (found != kinds_.end()) kinds |= found->second;
    }
    return kinds;
  }

  // Shows a node that has just made a bad value of good ones, with its outputs and what is left of its inputs. Without a
  // call, it came bad from outside. It began to be recorded at that time.
  void show(const Call* call, int32_t node, Outputs outputs, int kinds, int64_t began) {
    if (!are_sought_ || !is_news(node, kinds)) return;
    WithPython python;
    // Asked by name: a node is a number of ours, and a program of varying shapes has many numbers for one name.
    Object wanted = decoder_.ask("wants_bad", "ii", node, kinds);
    if (wanted.get() != Py_True) return;
    recording_.flush();  // records leave in the order of time
    Object made(wrapped(outputs));
    const size_t count = call == nullptr ? 0 : std::min(call->inputs.size(), call->tensors.size());
    Object values(PyTuple_New(Py_ssize_t(count))), inputs(PyTuple_New(Py_ssize_t(count)));
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor tensor = call->tensors[i];
      const bool is_there = tensor.defined() && !call->has_written(tensor) && !is_freed(tensor);
      PyObject* shown = is_there ? Object(THPVariable_Wrap(tensor)).release() : Py_NewRef(Py_None);
      PyTuple_SET_ITEM(inputs.get(), Py_ssize_t(i), shown);
      PyTuple_SET_ITEM(values.get(), Py_ssize_t(i), PyLong_FromLongLong(call->inputs[i]));
    }
    decoder_.ask("made_bad", "iOOOL", node, made.get(), values.get(), inputs.get(), (long long)began);
  }

  // ---- from run to run ----

  // What becomes of the bad values of a run that is over: their memory is free, or they may be used in a later run.
  void see_off() {
    gone.clear();
    for (auto it = survivors_.begin(); it != survivors_.end();) {
      const bool forget = it->second.storage.expired() || run_.values.was_written(it->first);
      it = forget ? survivors_.erase(it) : std::next(it);
    }
    if (kinds_.empty()) return;
    run_.values.each_storage([this](Value value, const void* address, const WeakStorage& storage) {
      if (kinds_.find(value) == kinds_.end()) return;
      if (storage.expired()) {
        gone.push_back(value);
      } else if (survivors_.size() < kMostSurvivors) {
        survivors_.emplace(address, Survivor{storage, run_.index, value});
      }
    });
  }

  std::vector<Value> survivors() const {
    std::vector<Value> values;
    for (const auto& each : survivors_) values.push_back(each.second.value);
    return values;
  }

  // Takes over what has survived runs of another observer; values, in the order of `survivors`, are as they are called here.
  void inherit(BadValues& other, const std::vector<Value>& values) {
    size_t next = 0;
    for (auto& each : other.survivors_) {
      if (next == values.size()) break;
      Survivor survivor = std::move(each.second);
      survivor.value = values[next++];
      survivors_.emplace(each.first, std::move(survivor));
    }
    other.survivors_.clear();
  }

 private:
  static constexpr size_t kMostSurvivors = 10'000;

  // A bad value that has outlived the run that made it. The weak pointer keeps its address from being used again.
  struct Survivor {
    WeakStorage storage;
    int64_t run;
    Value value;
  };

  // The kinds of bad values whose making by a node has been shown, while its number stands for it.
  struct Shown {
    uint32_t version = 0;
    int kinds = 0;
  };

  bool is_news(int32_t node, int kinds) {
    if (size_t(node) >= shown_.size()) shown_.resize(size_t(node) + 64);
    Shown& shown = shown_[size_t(node)];
    if (shown.version != versions_[node]) shown = {versions_[node], 0};
    if ((kinds & ~shown.kinds) == 0) return false;
    shown.kinds |= kinds;
    return true;
  }

  const Decoder& decoder_;
  const NodeVersions& versions_;
  Recording& recording_;
  Run& run_;
  bool are_sought_ = false;
  ska::flat_hash_map<Value, int> kinds_;
  ska::flat_hash_map<const void*, Survivor> survivors_;
  std::vector<Shown> shown_;
};

}  // namespace tensortap
