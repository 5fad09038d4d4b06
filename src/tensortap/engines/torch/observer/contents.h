// Whether it means anything what a memory holds: an op may leave it as it was found, a collective may still be writing it,
// and sharded programs free the storages of whole weights and fill them again. What nobody has written is garbage.
#pragma once

#include <c10/util/flat_hash_map.h>

#include "calls.h"
#include "values.h"

namespace tensortap {

// Storages that had no memory at the end of a run. When such a one comes into another it has memory again, which nobody has
// written yet.
class FreedStorages {
 public:
  // A run is over: takes note of what has no memory now.
  void note(const Values& values) {
    for (auto it = known_.begin(); it != known_.end();) it = it->second.expired() ? known_.erase(it) : std::next(it);
    values.each_freed([this](const void* address, const WeakStorage& storage) {
      if (known_.size() < kMost) known_.emplace(address, storage);
    });
  }

  // Whether a tensor lies in memory that a storage has got back after it was freed.
  bool has(const at::Tensor& tensor) const {
    if (known_.empty() || !has_plain_storage(tensor)) return false;
    return known_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) != known_.end();
  }

 private:
  static constexpr size_t kMost = 100'000;
  ska::flat_hash_map<const void*, WeakStorage> known_;  // weak pointers keep an address from being used again
};

class Contents {
 public:
  explicit Contents(Values& values) : values_(values) {}

  void begin_run() { has_unsettled_ = false; }

  void end_run() { freed_.note(values_); }

  // A tensor from outside has been named: whether its memory has yet to be filled.
  bool is_awaited(const Call& call, const at::Tensor& tensor, Memory& memory, int32_t node, Value value) {
    const bool is_computed_with = !call.op->is_view && !call.has_written(tensor);
    if (is_computed_with || !freed_.has(tensor) || !covers(tensor)) return false;
    has_unsettled_ = true;
    memory.content = Content::kRefilled;
    memory.written_bytes = 0;
    memory.arriving_node = node;
    memory.arriving = value;
    return true;
  }

  // A call takes an input: whether what was on its way there has arrived, and is now to be looked at. The threads of a collective
  // write it with ops of their own; what the program computes with it has arrived.
  bool has_arrived(const Call& call, Memory& memory, Value value, bool written) {
    const bool is_under_way = memory.content == Content::kArriving || memory.content == Content::kRefilled;
    const Operator& op = *call.op;
    if (!is_under_way || !call.is_by_program || op.is_view || op.is_collective || op.is_wait) return false;
    if (written && (op.overwrites || memory.content == Content::kRefilled)) return false;
    memory.content = Content::kThere;
    return value == memory.arriving;
  }

  // Notes what an op has done to the memory of an output; whether there is something in it to be looked at.
  bool settle(const Call& call, int32_t node, size_t slot, const at::Tensor& tensor) {
    const Operator& op = *call.op;
    if (op.leaves_garbage || op.is_collective) has_unsettled_ = true;
    if (!has_unsettled_) return true;
    Memory* memory = values_.memory_at(place_of(tensor));
    if (memory == nullptr) return true;
    const bool written = call.has_written(tensor);
    if (op.is_collective) {
      memory->content = Content::kArriving;
      memory->arriving_node = node;
      memory->arriving = value_of(call.entry, slot);
    } else if (op.is_wait) {
      memory->content = Content::kThere;
    } else if (op.leaves_garbage && !written) {
      memory->content = Content::kGarbage;
      memory->written_bytes = 0;
    } else if (written && memory->plain &&
               (memory->content == Content::kGarbage || memory->content == Content::kRefilled)) {
      memory->written_bytes += tensor.numel() * int64_t(tensor.element_size());
      if (memory->written_bytes >= int64_t(tensor.storage().nbytes())) memory->content = Content::kThere;
      return true;
    }
    return memory->content == Content::kThere;
  }

 private:
  Values& values_;
  bool has_unsettled_ = false;  // some memory of the run is, or was, garbage or under way
  FreedStorages freed_;
};

}  // namespace tensortap
