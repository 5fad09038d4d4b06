// A lock that a forked child can take over.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace tensortap {

inline std::atomic<uint64_t> process_generation{1};  // changes in a forked child, which is not the process being observed

inline void in_forked_child() { process_generation.fetch_add(1); }

// Held for a microsecond at a time, and hardly ever by two threads: only who flushes the records of a run that hangs, and
// the threads of autograd, come from outside the thread of the run.
class SpinLock {
 public:
  bool try_lock() {
    const uint64_t generation = process_generation.load(std::memory_order_relaxed);
    uint64_t holder = kFree;
    if (taken_.compare_exchange_strong(holder, generation, std::memory_order_acquire)) return true;
    // In a forked child, the thread that held it in the parent does not exist.
    return holder != generation && taken_.compare_exchange_strong(holder, generation, std::memory_order_acquire);
  }
  void unlock() { taken_.store(kFree, std::memory_order_release); }

  // Waits without the GIL, which the thread that holds the lock may need to go on.
  void lock() {
    if (try_lock()) return;
    PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    while (!try_lock()) std::this_thread::yield();
    if (released != nullptr) PyEval_RestoreThread(released);
  }

 private:
  static constexpr uint64_t kFree = 0;
  std::atomic<uint64_t> taken_{kFree};  // the process that holds it, by its generation
};

}  // namespace tensortap
