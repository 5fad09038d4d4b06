// What time it is, for one record after the other. The system's clock takes as long as a look at a small tensor; the counter
// of the processor takes a third of that, and need only be held against the clock a thousand times a second.
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <x86intrin.h>
#define TENSORTAP_COUNTS_TICKS 1
#else
#define TENSORTAP_COUNTS_TICKS 0
#endif

namespace tensortap {

class Clock {
 public:
  // Microseconds since the epoch.
  int64_t now() {
#if TENSORTAP_COUNTS_TICKS
    if (!counts_steadily()) return system_time() / 1000;
    const uint64_t ticks = __rdtsc();
    const uint64_t passed = ticks - set_at_;
    if (passed > most_ticks_) return set(ticks) / 1000;
    return (set_to_ + int64_t(double(passed) * nanoseconds_)) / 1000;
#else
    return system_time() / 1000;
#endif
  }

 private:
  static int64_t system_time() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }

#if TENSORTAP_COUNTS_TICKS
  static constexpr int64_t kLearns = 10'000'000;  // nanoseconds over which it is seen how long a tick is
  static constexpr double kTrusted = 1e6;  // nanoseconds for which the counter is believed

  static bool counts_steadily() {
    static const bool is_so = [] {
      unsigned a, b, c, d;
      return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
    }();
    return is_so;
  }

  int64_t set(uint64_t ticks) {
    const int64_t time = system_time();
    if (first_ticks_ == 0) {
      first_ticks_ = ticks;
      first_time_ = time;
    } else if (time - first_time_ > kLearns && ticks > first_ticks_) {
      nanoseconds_ = double(time - first_time_) / double(ticks - first_ticks_);
      most_ticks_ = uint64_t(kTrusted / nanoseconds_);
      if (time - first_time_ > 1000 * kLearns) {  // the clock may have been put right since
        first_ticks_ = ticks;
        first_time_ = time;
      }
    } else if (time < first_time_) {  // it has been put back
      first_ticks_ = ticks;
      first_time_ = time;
    }
    set_at_ = ticks;
    set_to_ = time;
    return time;
  }

  uint64_t first_ticks_ = 0, set_at_ = 0, most_ticks_ = 0;
  int64_t first_time_ = 0, set_to_ = 0;
  double nanoseconds_ = 0;  // of a tick
#endif
};

}  // namespace tensortap
