// The state of a thread that executes ops of an observed run, and which observer looks at it.
#pragma once

#include <atomic>

#include "calls.h"

namespace tensortap {

class Observer;

struct Thread {
  Observer* observer = nullptr;
  uint64_t run = 0;
  int depth = 0;
  int opaque_depth = 0;  // depth of the op whose inside is not looked at, 0 for none
  bool busy = false;     // ops of our own
  bool by_fallback = false, was_excluded = false;  // how ops are seen, see fallback.h; and whether none was to be
  bool is_wrapped = false;  // the op that starts is one on a wrapper, and those inside are looked at instead
  int64_t calls = 0;     // RecordFunctions of this run so far, our own ones included: the profiler sees the same
  const void* starting = nullptr;  // the last of them; a run inside a run has two callbacks, which both see it
  Call call;
};

// Of the initial-exec kind, which is read without a function call.
__attribute__((tls_model("initial-exec"))) inline thread_local Thread* thread_state = nullptr;

inline Thread& this_thread() {
  if (thread_state == nullptr) thread_state = new Thread;  // kept: threads of torch live as long as the process
  return *thread_state;
}

// Work of our own must not be observed, nor become part of anybody's autograd graph.
struct Busy {
  explicit Busy(Thread& thread) : thread_(thread) { thread.busy = true; }
  ~Busy() { thread_.busy = false; }
  Thread& thread_;
};

}  // namespace tensortap
