// Which memory of a run a storage is, by its address. One slot is a quarter of a cache line, all of them are emptied at once,
// and who will need one can have it fetched into the cache: half of all that the observer does is to look up addresses that
// nobody has touched for long.
#pragma once

#include <cstdint>
#include <vector>

namespace tensortap {

class MemoryTable {
 public:
  static constexpr uint32_t kNowhere = UINT32_MAX;

  // The place of a memory, or kNowhere.
  uint32_t find(const void* address) const {
    for (size_t i = home_of(address);; i = next(i)) {
      const Slot& slot = slots_[i];
      if (slot.round != round_) return kNowhere;
      if (slot.address == address) return slot.place;
    }
  }

  void prefetch(const void* address) const { __builtin_prefetch(&slots_[home_of(address)]); }

  // One that is not there.
  void add(const void* address, uint32_t place) {
    if (2 * ++count_ > slots_.size()) grow();
    put(address, place);
  }

  void erase(const void* address) {
    size_t hole = home_of(address);
    while (slots_[hole].address != address || slots_[hole].round != round_) {
      if (slots_[hole].round != round_) return;
      hole = next(hole);
    }
    count_ -= 1;
    // Those behind it move up, as far as that brings them no further than their home.
    for (size_t i = next(hole); slots_[i].round == round_; i = next(i)) {
      const size_t from_home = distance(home_of(slots_[i].address), i);
      if (from_home < distance(hole, i)) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole].round = round_ - 1;
  }

  void clear() {
    count_ = 0;
    if (++round_ != 0) return;
    for (Slot& slot : slots_) slot.round = 0;
    round_ = 1;
  }

 private:
  struct Slot {
    const void* address = nullptr;
    uint32_t place = 0;
    uint32_t round = 0;  // in which it was filled: those of other rounds are empty
  };

  size_t home_of(const void* address) const {
    return size_t((reinterpret_cast<uint64_t>(address) * 0x9E3779B97F4A7C15ull) >> shift_);
  }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (slots_.size() - 1); }

  void put(const void* address, uint32_t place) {
    size_t i = home_of(address);
    while (slots_[i].round == round_) i = next(i);
    slots_[i] = {address, place, round_};
  }

  void grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    shift_ -= 1;
    for (const Slot& slot : before) {
      if (slot.round == round_) put(slot.address, slot.place);
    }
  }

  static constexpr int kFirstBits = 10;

  std::vector<Slot> slots_ = std::vector<Slot>(size_t(1) << kFirstBits);
  int shift_ = 64 - kFirstBits;
  size_t count_ = 0;
  uint32_t round_ = 1;
};

}  // namespace tensortap
