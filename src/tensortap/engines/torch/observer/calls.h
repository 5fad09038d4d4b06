// One call of an operator, from its start to its end.
#pragma once

#include <c10/util/SmallVector.h>

#include <vector>

#include "operators.h"

namespace tensortap {

using Outputs = c10::ArrayRef<const at::Tensor*>;

// What is known of a call's kind before it has run; see kinds.h.
struct CallKind {
  uint64_t call = 0;  // 0 if it cannot be told
  int32_t similar = kNone;  // a kind that differs in its outputs at most
};

// The tensors that a call is given, for whoever wants to see them when it is over.
class InputTensors {
 public:
  void begin(bool stay) { stay_ = stay; }

  void add(const at::Tensor& tensor) {
    if (stay_) {
      staying_.push_back(&tensor);
    } else {
      weak_.emplace_back(tensor.getIntrusivePtr());
    }
  }

  size_t size() const { return stay_ ? staying_.size() : weak_.size(); }

  // Undefined if it is gone.
  at::Tensor operator[](size_t place) const { return stay_ ? *staying_[place] : at::Tensor(weak_[place].lock()); }

  void clear() {
    staying_.clear();
    weak_.clear();
  }

 private:
  bool stay_ = false;  // as parameters of a C++ function do until it returns
  c10::SmallVector<const at::Tensor*, 8> staying_;
  c10::SmallVector<WeakTensor, 4> weak_;  // what lies on a stack may be freed, or its memory used for the output
};

struct Call {
  Operator* op = nullptr;
  uint64_t run = 0;
  int32_t entry = kNone, forward = kNone, owner = 0;
  uint64_t site = 0, begin = 0, arguments = 0;  // as in Variant
  size_t position = 0;  // in the sequence of its run
  bool is_as_last = false;  // so far: like the call that stood there last
  int32_t known = kNone;  // a node that differs at most in its output types, and in where its inputs come from
  CallKind kind;  // of one without such a node
  int uncaught = 0;
  int64_t number = 0;  // among those of its thread, see threads.h
  bool valid = false;
  bool is_by_program = false;  // in the thread of the run, not in one of autograd or a collective
  c10::SmallVector<Value, 8> inputs;
  InputTensors tensors;  // the inputs, if bad values are looked for
  c10::SmallVector<int32_t, 2> controls;
  c10::SmallVector<c10::TensorImpl*, 2> written;
  std::vector<at::Tensor> kept;  // what it writes and does not return

  void start(Operator* of, uint64_t in_run) {
    op = of;
    run = in_run;
    known = forward = kNone;
    owner = 0;
    kind = {};
    inputs.clear();
    controls.clear();
    written.clear();
    let_go();
  }

  // Nothing of the program is held longer than its op takes.
  void let_go() {
    tensors.clear();
    kept.clear();
  }

  bool has_written(const at::Tensor& tensor) const {
    for (const auto* impl : written) {
      if (impl == tensor.unsafeGetTensorImpl()) return true;
    }
    return false;
  }

  void add_control(int32_t writer) {
    for (int32_t each : controls) {
      if (each == writer) return;
    }
    controls.push_back(writer);
  }
};

}  // namespace tensortap
