// What the runs of a program go through, in order: which name comes next, and which node it stood for the last time. A program
// that repeats itself finds all that there is to know of an op in one place, right behind that of the op before.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "plans.h"
#include "values.h"

namespace tensortap {

// A name in its place, and the node that stood there last. One cache line.
struct alignas(64) Step {
  uint64_t key;  // scope and label
  int32_t entry, family;
  uint32_t number;  // in its family
  uint32_t version = 0;  // of the node; 0 if there is none
  int32_t node = kNone;
  uint32_t plan = 0;  // in which the first output of the node has this one tap, or none
  uint64_t begin = 0, arguments = 0, end = 0;  // as in Variant
  Tap tap{};

  static constexpr Tap kNoTap{INT32_MIN, 0};
  bool has_tap() const { return tap.lane != kNoTap.lane; }
};
static_assert(sizeof(Step) == 64);

struct Sequence {
  std::vector<Step> steps;
  uint64_t last_run = 0;  // that went through it, by number
};

// A program takes turns between a few of them: rollouts and updates, training and evaluation.
class Sequences {
 public:
  // A run begins, like the last one until it shows otherwise.
  void begin_run() {
    is_followed_ = true;
    present_->last_run = ++run_;
  }

  // Whether every name of the run so far was the one that is noted here.
  bool is_followed() const { return is_followed_; }

  std::vector<Step>& present() { return present_->steps; }
  const std::vector<Step>& present() const { return present_->steps; }

  // Another name than the one that is noted at a position comes there, or there is none. Goes on with a sequence in which
  // it does come next, if there is one that is the same up to there. Else what would have come may come again: it is left as
  // it is, and a copy goes on, which is not followed.
  bool turn(size_t position, uint64_t key) {
    for (Sequence& other : all_) {
      if (&other != present_ && is_same(other.steps, position) && other.steps[position].key == key) {
        present_ = &other;
        present_->last_run = run_;
        return true;
      }
    }
    is_followed_ = false;
    if (position < present_->steps.size()) {
      const auto is_older = [](const Sequence& one, const Sequence& two) { return one.last_run < two.last_run; };
      Sequence& oldest = *std::min_element(all_.begin(), all_.end(), is_older);
      oldest.steps = present_->steps;
      oldest.last_run = run_;
      present_ = &oldest;
    }
    return false;
  }

 private:
  // Whether another sequence goes on from a position, up to which it is like the present one.
  bool is_same(const std::vector<Step>& other, size_t position) const {
    if (position >= other.size()) return false;
    for (size_t i = 0; i < position; ++i) {
      if (other[i].entry != present_->steps[i].entry) return false;
    }
    return true;
  }

  std::array<Sequence, 4> all_;
  Sequence* present_ = &all_[0];
  uint64_t run_ = 0;
  bool is_followed_ = true;
};

}  // namespace tensortap
