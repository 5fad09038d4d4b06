// Which op of the forward pass an autograd node belongs to, told by the numbers that autograd gives its nodes in order.
#pragma once

#include <ATen/SequenceNumber.h>

#include <vector>

#include "calls.h"

namespace tensortap {

class ForwardOps {
 public:
  void begin_run() {
    entries_.clear();
    first_ = next_ = at::sequence_number::peek();
    in_wrapper_ = false;
  }

  // Autograd nodes made since the last op, or by this one, belong to this one.
  void attribute(const Call& call) {
    const uint64_t following = at::sequence_number::peek();
    if (following <= next_ || (in_wrapper_ && call.op->is_communication)) return;
    entries_.resize(following - first_, call.entry);
    next_ = following;
    in_wrapper_ = false;
  }

  // An op on a wrapper begins. Its autograd node is that of the first op inside that computes: what is communicated before
  // are its inputs.
  void begin_wrapper() {
    if (at::sequence_number::peek() > next_) in_wrapper_ = true;
  }

  // The name of an op of this run.
  int32_t entry_of(uint64_t sequence) const {
    return sequence >= first_ && sequence - first_ < entries_.size() ? entries_[sequence - first_] : kNone;
  }

 private:
  std::vector<int32_t> entries_;  // by sequence number, from first_
  uint64_t first_ = 0, next_ = 0;
  bool in_wrapper_ = false;
};

}  // namespace tensortap
