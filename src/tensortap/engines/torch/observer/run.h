// What a run has come to so far. Names, scopes, records and bad values keep their own part of it.
#pragma once

#include <atomic>
#include <vector>

#include "plans.h"
#include "spin_lock.h"
#include "values.h"

namespace tensortap {

// One output of an executed op: what it takes to find the op, and its memory, in the record of PyTorch's profiler.
struct Execution {
  int64_t position;  // of the node in the run
  int64_t thread, call;
  int64_t slot;  // -1 for an op without outputs
  int64_t address;
};

// Beyond which a run is not recorded; see limits.py.
struct Limits {
  size_t nodes = SIZE_MAX, made = SIZE_MAX, outside = SIZE_MAX;
};

inline std::atomic<uint64_t> next_run{1};  // runs are told apart also when their observers are gone

struct Run {
  uint64_t id = 0, generation = 0;
  int64_t index = -1;  // its number in its session, -1 if it has none
  Plan* plan = nullptr;
  std::vector<int32_t> nodes;
  Values values;
  Limits limits;
  size_t made = 0;  // nodes that had to be built
  bool in_modules = false;  // one has been called
  int64_t unrecorded = 0;  // ops over the limits
  int64_t met = 0;  // when ranks first exchanged something, in microseconds since the epoch
  bool traced = false;
  std::vector<Execution> executions;

  void begin(Plan* watched) {
    id = next_run.fetch_add(1);
    generation = process_generation.load();
    index = -1;
    plan = watched;
    nodes.clear();
    values.clear();
    limits = Limits{};
    made = 0;
    in_modules = false;
    unrecorded = 0;
    met = 0;
    traced = false;
    executions.clear();
  }

  void end() {
    values.clear();
    plan = nullptr;
  }

  bool is_full() const {
    return unrecorded > 0 || nodes.size() >= limits.nodes || made >= limits.made ||
           (!in_modules && nodes.size() >= limits.outside);
  }
};

}  // namespace tensortap
