// What is watched, and the records of the run that is under way.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "records.h"

namespace tensortap {

enum LaneKind : int32_t { kPill = 0, kValue = 1 };

struct Lane {
  int32_t kind, mute_if_healthy;
  double lower, upper;
};

// A graph as Python is told of it, and what it answers.
struct Description {
  int64_t watch;
  const char *function, *device, *graph_def;
  int64_t graph_def_size, node_count, output_count;
  const int32_t* outputs;  // by node: how many it has, variables it writes included
  const int32_t* written;  // by node: how many of them are variables it writes
  const int32_t* dtypes;   // by output
  int64_t first;           // number of the first output
  uint32_t* lanes;         // by output: a bit for each lane; Python fills it in
};

// A run that waits for what Python says; the value may be overwritten.
struct Stopped {
  int64_t watch, recorder, number, rank, dims[kMaxRank];
  void* data;
  int64_t nbytes;
};

using Describe = int32_t (*)(const Description*);
using OnStop = void (*)(Stopped*);
using OnFull = void (*)(int64_t watch);

// The same for all runs of one watch.
struct Watch {
  int64_t handle = 0;
  std::vector<Lane> lanes;
  int32_t keep_bad = 0;
  int64_t value_limit = 0;
  Describe describe = nullptr;
  OnFull on_full = nullptr;
  OnStop on_stop = nullptr;

  // Numbers for the outputs of another graph.
  int64_t number_outputs(int64_t count) {
    std::lock_guard<std::mutex> hold(lock_);
    const int64_t first = numbered_;
    numbered_ += count;
    return first;
  }

  // Whether a node has not been shown making bad values of these kinds; it has from now on.
  bool is_news(int64_t number, int kinds) {
    std::lock_guard<std::mutex> hold(lock_);
    int& shown = shown_[number];
    const bool news = (kinds & ~shown) != 0;
    shown |= kinds;
    return news;
  }

 private:
  std::mutex lock_;
  int64_t numbered_ = 0;
  std::unordered_map<int64_t, int> shown_;  // kinds, by the number of a node's first output
};

// Collects the records of one run at a time. Threads of the runtime add, any thread takes.
class Recorder {
 public:
  Recorder(int64_t id, std::shared_ptr<Watch> watch)
      : id(id), watch(std::move(watch)), muted(this->watch->lanes.size()) {}
  ~Recorder() {
    if (open_ != nullptr) delete_block(open_);
    for (Block* block : full_) delete_block(block);
  }

  const int64_t id;
  const std::shared_ptr<Watch> watch;

  bool is_armed() const { return armed_.load(std::memory_order_acquire); }

  void arm() {
    left_ = watch->keep_bad;
    armed_.store(true, std::memory_order_release);
  }

  void disarm() { armed_.store(false, std::memory_order_release); }

  // Room for a record, which is the caller's to fill and then to finish.
  struct Room {
    Block* block = nullptr;
    Row* row = nullptr;
    Execution* execution = nullptr;
    char* data = nullptr;
  };

  Room reserve(size_t size, bool is_value) {
    Room room;
    Block* filled = nullptr;
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (is_value && waiting_ + int64_t(size) > watch->value_limit) {
        ++dropped_;
        return room;
      }
      const size_t alignment = is_value ? kAlignment : 8;
      size_t offset = open_ == nullptr ? 0 : (open_->used + alignment - 1) / alignment * alignment;
      if (open_ != nullptr && (open_->count == kRows || offset + size > open_->size)) {
        filled = close();
        offset = 0;
      }
      if (open_ == nullptr) open_ = new_block(size);
      if (open_ == nullptr) {
        ++dropped_;
      } else {
        const uint32_t place = open_->count++;
        room = {open_, open_->rows + place, open_->executions + place, open_->data + offset};
        room.row->offset = int64_t(offset);
        room.row->nbytes = int64_t(size);
        open_->used = offset + size;
        ++open_->writers;
        if (is_value) {
          open_->value_bytes += int64_t(size);
          waiting_ += int64_t(size);
        }
      }
    }
    if (filled != nullptr) tell();
    return room;
  }

  void finish(const Room& room, bool is_bad) {
    bool filled = false;
    {
      std::lock_guard<std::mutex> hold(lock_);
      room.block->has_bad |= is_bad;
      room.block->has_apart |= (room.execution->flags & kApart) != 0;
      if (--room.block->writers == 0 && room.block->is_closed) {
        full_.push_back(room.block);
        filled = true;
      }
    }
    if (filled) tell();
  }

  void mute(size_t lane) { muted[lane].fetch_add(1, std::memory_order_relaxed); }
  void fault() { faults_.fetch_add(1, std::memory_order_relaxed); }
  int64_t take_faults() { return faults_.exchange(0); }

  int64_t take_dropped() {
    std::lock_guard<std::mutex> hold(lock_);
    return std::exchange(dropped_, 0);
  }

  // One more maker of bad values is kept whole.
  bool may_keep() { return left_.fetch_sub(1) > 0; }

  // A block that is full, or at the end of a run any; null if there is none.
  Block* take(bool is_last) {
    std::lock_guard<std::mutex> hold(lock_);
    if (full_.empty() && is_last && open_ != nullptr) close();
    if (full_.empty()) return nullptr;
    Block* block = full_.front();
    full_.pop_front();
    waiting_ -= block->value_bytes;
    return block;
  }

  std::vector<std::atomic<int64_t>> muted;

 private:
  // Whoever copies into it still makes it full when done.
  Block* close() {
    Block* block = std::exchange(open_, nullptr);
    block->is_closed = true;
    if (block->writers != 0) return nullptr;
    full_.push_back(block);
    return block;
  }

  void tell() {
    if (watch->on_full != nullptr) watch->on_full(watch->handle);
  }

  std::mutex lock_;
  Block* open_ = nullptr;
  std::deque<Block*> full_;
  int64_t waiting_ = 0, dropped_ = 0;
  std::atomic<bool> armed_{false};
  std::atomic<int32_t> left_{0};
  std::atomic<int64_t> faults_{0};
};

// Recorders by their number, which is how graphs and executors name them.
class Recorders {
 public:
  std::shared_ptr<Recorder> add(std::shared_ptr<Watch> watch) {
    std::lock_guard<std::mutex> hold(lock_);
    auto recorder = std::make_shared<Recorder>(++last_, std::move(watch));
    all_[last_] = recorder;
    return recorder;
  }

  std::shared_ptr<Recorder> find(int64_t id) {
    std::lock_guard<std::mutex> hold(lock_);
    auto found = all_.find(id);
    return found == all_.end() ? nullptr : found->second;
  }

  void remove(int64_t id) {
    std::lock_guard<std::mutex> hold(lock_);
    all_.erase(id);
  }

 private:
  std::mutex lock_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, std::shared_ptr<Recorder>> all_;
};

inline Recorders& recorders() {
  static auto* all = new Recorders;
  return *all;
}

}  // namespace tensortap
