// Names by number: an entry is a name, told apart by scope, label and count within them (see engines/observe/names.py), and
// remembers the nodes it has stood for.
#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "decoder.h"
#include "sequences.h"
#include "values.h"

namespace tensortap {

// One appearance of a node: the same inputs, arguments, line and output types.
struct Variant {
  uint64_t begin, arguments, end;
  int32_t node;
  uint64_t kind = 0;  // of its outputs: dtypes, ranks and devices
  uint64_t site = 0;  // operator, line and forward node: all but the inputs of `begin`
};

struct NameEntry {
  static constexpr int kMaxVariants = 8;

  c10::SmallVector<Variant, 1> variants;
  int32_t inner_scope = kNone;
  uint8_t next_victim = 0, argument_changes = 0, shape_changes = 0;
  bool arguments_vary = false;
  c10::SmallVector<uint32_t, 1> varying;  // for each output, which of its dimensions vary, as bits

  int32_t find(uint64_t begin, uint64_t arguments, uint64_t end) const {
    for (const Variant& each : variants) {
      if (each.begin == begin && each.arguments == arguments && each.end == end) return each.node;
    }
    return kNone;
  }

  // The number of a node that will not be needed any more, or -1 for a new one.
  int32_t victim() const { return variants.size() < kMaxVariants ? kNone : variants[next_victim].node; }

  void remember(const Variant& variant) {
    if (variants.size() < kMaxVariants) {
      variants.push_back(variant);
    } else {
      variants[next_victim] = variant;
      next_victim = uint8_t((next_victim + 1) % kMaxVariants);
    }
  }

  // From now on this one stands for all.
  void remember_only(Variant variant) {
    variants.clear();
    variants.push_back(variant);
    next_victim = 0;
  }
};

// All entries of a session. Each run goes through them again.
class NameEntries {
 public:
  explicit NameEntries(const Decoder& decoder) : decoder_(decoder) {}

  NameEntry& operator[](int32_t entry) { return entries_[size_t(entry)]; }
  const NameEntry& operator[](int32_t entry) const { return entries_[size_t(entry)]; }

  // The scope of the gradients of an op; -1 if nobody has asked for it yet. The backward pass asks for one after the other.
  int32_t& gradient_scope(int32_t entry) {
    if (size_t(entry) >= gradient_scopes_.size()) gradient_scopes_.resize(entries_.size(), kNone);
    return gradient_scopes_[size_t(entry)];
  }

  void begin_run(uint64_t run) {
    run_ = run;
    position_ = 0;
    sequences_.begin_run();
  }

  // The entry of the next thing called so in this run.
  int32_t next(int32_t scope, int32_t label) {
    const uint64_t key = (uint64_t(uint32_t(scope)) << 32) | uint32_t(label);
    const size_t position = position_;
    if (is_expected(position, key)) {
      position_ = position + 1;
      const std::vector<Step>& sequence = sequences_.present();
      if (position + 2 < sequence.size()) __builtin_prefetch(&sequence[position + 2]);
      return sequence[position].entry;
    }
    const Step step = look_up(key, scope, label);  // may throw, and then this position is still free
    std::vector<Step>& sequence = sequences_.present();
    if (position < sequence.size()) {
      sequence[position] = step;
    } else {
      sequence.push_back(step);
    }
    position_ = position + 1;
    return step.entry;
  }

  // Where the next name of the run will stand; once it is there, `step` tells what is known of it.
  size_t position() const { return position_; }
  Step& step(size_t position) { return sequences_.present()[position]; }

  // For something that is no op, and named by Python.
  int32_t reserve() {
    entries_.emplace_back();
    return int32_t(entries_.size()) - 1;
  }

 private:
  // Whether the name is the one that stands at this position. While all were, how often each has been is known by that.
  bool is_expected(size_t position, uint64_t key) {
    const std::vector<Step>& sequence = sequences_.present();
    const bool is_noted = position < sequence.size() && sequence[position].key == key;
    if (sequences_.is_followed()) {
      if (is_noted || sequences_.turn(position, key)) return true;
      count_again(position);
      return false;
    }
    if (!is_noted) return false;
    Family& family = families_[size_t(sequence[position].family)];
    const uint32_t count = family.run == run_ ? family.count : 0;
    if (sequence[position].number != count) return false;
    family.run = run_;
    family.count = count + 1;
    return true;
  }

  // From here on names are counted.
  void count_again(size_t position) {
    const std::vector<Step>& sequence = sequences_.present();
    for (size_t i = 0; i < position; ++i) {
      Family& family = families_[size_t(sequence[i].family)];
      family.run = run_;
      family.count = sequence[i].number + 1;
    }
  }

  // All entries of one label in one scope, in the order of a run.
  struct Family {
    uint64_t key = 0;  // scope and label
    uint64_t run = 0;
    uint32_t count = 0;
    std::vector<int32_t> entries;
  };

  Step look_up(uint64_t key, int32_t scope, int32_t label) {
    auto found = family_numbers_.find(key);
    if (found == family_numbers_.end()) {
      found = family_numbers_.emplace(key, int32_t(families_.size())).first;
      families_.emplace_back();
      families_.back().key = key;
    }
    const int32_t which = found->second;
    Family& family = families_[which];
    if (family.run != run_) {
      family.run = run_;
      family.count = 0;
    }
    const uint32_t number = family.count;
    if (number == family.entries.size()) {
      decoder_.tell("new_entry", "iiiI", int(entries_.size()), scope, label, number);
      families_[which].entries.push_back(int32_t(entries_.size()));
      entries_.emplace_back();
    }
    families_[which].count = number + 1;
    Step step{key, families_[which].entries[number], which, number};
    return step;
  }

  const Decoder& decoder_;
  uint64_t run_ = 0;
  size_t position_ = 0;  // names given so far in this run
  std::vector<NameEntry> entries_;
  std::vector<int32_t> gradient_scopes_;  // by entry
  ska::flat_hash_map<uint64_t, int32_t> family_numbers_;
  std::vector<Family> families_;
  Sequences sequences_;
};

}  // namespace tensortap
