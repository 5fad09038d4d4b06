// Which node produced the tensor in front of us: the same idea as places.py, see there.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "memory_table.h"

namespace tensortap {

constexpr int32_t kNone = -1;  // of numbers

// One output: the number of its node's entry, and the slot.
using Value = int64_t;
constexpr Value kNoValue = -1;
constexpr int kSlotBits = 20;
inline Value value_of(int32_t entry, size_t slot) { return (int64_t(entry) << kSlotBits) | int64_t(slot); }
inline size_t slot_of(Value value) { return size_t(value & ((Value(1) << kSlotBits) - 1)); }

// Two rounds of a multiplicative mix; collisions over a run of a million places are of no concern at 64 bits.
inline uint64_t mix(uint64_t hash, uint64_t more) {
  hash = (hash ^ more) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// Where a tensor lives and how it reads it. Tensors without a plain storage are known by their object.
struct Place {
  const void* memory;
  uint64_t geometry;
  bool operator==(const Place& other) const { return memory == other.memory && geometry == other.geometry; }
};

struct PlaceHash {
  size_t operator()(const Place& place) const { return mix(reinterpret_cast<uint64_t>(place.memory), place.geometry); }
};

// A class may work out even the rank in Python; then it is taken for 0.
inline int64_t rank_of(const at::Tensor& tensor) {
  return is_wrapper(tensor) && !has_plain_storage(tensor) ? 0 : tensor.dim();
}

// A hash of numbers in a row, such as sizes, that does not wait for one before it takes the next.
class RowHash {
 public:
  void add(int64_t number) {
    sum_ += uint64_t(number) * factor_;
    factor_ *= 0xD1B54A32D192ED03ull;
  }
  uint64_t with(uint64_t hash) const { return mix(hash, sum_); }

 private:
  uint64_t sum_ = 0, factor_ = 0x9E3779B97F4A7C15ull;
};

// What an output is like: dtype, rank and sizes, but for those dimensions that vary, as bits.
inline uint64_t spec_but(const at::Tensor& tensor, uint32_t varying) {
  const uint64_t kind = uint64_t(tensor.scalar_type()) << 32 | uint64_t(rank_of(tensor) + 1);
  RowHash sizes;
  if (has_plain_storage(tensor)) {
    const auto all = tensor.sizes();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= 32 || (varying >> i & 1) == 0) sizes.add(all[i]);
    }
  }
  return sizes.with(kind);
}

inline Place place_of(const at::Tensor& tensor, uint64_t* spec = nullptr) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!has_plain_storage(tensor)) {
    const uint64_t hash = spec_but(tensor, 0);
    if (spec != nullptr) *spec = hash;
    return {impl, hash};
  }
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  RowHash like, lies;
  for (size_t i = 0; i < sizes.size(); ++i) {
    like.add(sizes[i]);
    lies.add(strides[i]);
  }
  const uint64_t hash = like.with(uint64_t(tensor.scalar_type()) << 32 | uint64_t(sizes.size() + 1));
  if (spec != nullptr) *spec = hash;
  const uint64_t offset = uint64_t(tensor.storage_offset()) * 4 + tensor.is_neg() * 2 + tensor.is_conj();
  return {impl->unsafe_storage().unsafeGetStorageImpl(), lies.with(mix(hash, offset))};
}

// A tensor from outside the run that no op has used yet, with all it takes to look at the whole of it.
struct Source {
  int32_t node;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

// Whether it means anything what a memory holds.
enum class Content : uint8_t {
  kThere,
  kGarbage,  // nobody has written it yet
  kArriving,  // a collective is writing it; whoever computes with it first has waited for that
  kRefilled,  // it had been freed and is new: garbage until it is written, unless that happens where nobody sees it
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// What a place stands for.
struct Origin {
  Value value = kNoValue;
  uint32_t version = 0;  // of the memory when it was assigned
  uint32_t memory = 0, serial = 0;  // which memory that is
  int32_t source = -1;  // index into sources while it has not been used
};

// One storage of the run: how often it was written, by which node last, and the first place named in it. What every look-up
// reads lies in its first cache line.
struct alignas(64) Memory {
  uint64_t root_geometry = 0;
  Origin origin;  // of the root
  uint32_t serial = 0;  // no two of a run share one; 0 if it is unused
  uint32_t version = 0;
  int32_t writer = -1;
  bool plain = false;
  bool has_views = false;  // other places than the first
  Content content = Content::kThere;
  c10::ScalarType root_dtype{};
  const void* address = nullptr;
  WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};  // if it is plain
  WeakTensor object{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};  // if it is not
  int64_t written_bytes = 0;  // while it is garbage, or refilled
  int32_t arriving_node = -1;  // whose output it is, while it arrives or is filled
  Value arriving = kNoValue;

  bool is_gone() const { return plain ? storage.expired() : object.expired(); }

  // Unused from now on: what the next use of it does not set is as it was at first.
  void let_go() {
    storage.reset();
    object.reset();
    origin = Origin{};
    serial = version = 0;
    writer = -1;
    has_views = false;
    content = Content::kThere;
  }
};

// All places of a run that have a name. Storages are held by weak pointers, which frees their data as usual but keeps their
// address from being given to another one.
//
// Those that are gone are let go after a while. Otherwise every op of the program would meet memory that nobody has touched
// for long, its own and ours, where without us it uses the same few cache lines over and over.
class Values {
 public:
  Origin* find(const Place& place) {
    Memory* memory = memory_at(place);
    if (memory == nullptr) return nullptr;
    if (memory->root_geometry == place.geometry) return &memory->origin;
    if (!memory->has_views) return nullptr;
    auto found = views_.find(place);
    return found == views_.end() || found->second.serial != memory->serial ? nullptr : &found->second;
  }

  // The value of a tensor, if it has one.
  Value value_of(const at::Tensor& tensor) {
    const Origin* origin = find(place_of(tensor));
    return origin == nullptr ? kNoValue : origin->value;
  }

  Memory* memory_at(const Place& place) {
    const uint32_t index = memory_of_.find(place.memory);
    return index == MemoryTable::kNowhere ? nullptr : &memories_[index];
  }

  // The value of a tensor will be looked up soon.
  void prefetch(const at::Tensor& tensor) const {
    if (has_storage(tensor)) memory_of_.prefetch(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }

  // Whether the run has written to a storage that is still there.
  bool was_written(const void* storage) const {
    const uint32_t index = memory_of_.find(storage);
    return index != MemoryTable::kNowhere && memories_[index].version != 0;
  }

  Memory& memory(const Origin& origin) { return memories_[origin.memory]; }

  Origin& assign(const at::Tensor& tensor, const Place& place, Value value) {
    uint32_t index = memory_of_.find(place.memory);
    if (index == MemoryTable::kNowhere) index = add_memory(tensor, place);
    Memory& memory = memories_[index];
    const bool is_root = memory.root_geometry == place.geometry;
    memory.has_views |= !is_root;
    Origin& origin = is_root ? memory.origin : views_[place];
    origin = {value, memory.version, index, memory.serial, -1};
    return origin;
  }

  void keep_source(Origin& origin, const at::Tensor& tensor, int32_t node) {
    Source source{node, {}, {}, 0};
    if (has_plain_storage(tensor)) {
      source.sizes = tensor.sizes().vec();
      source.strides = tensor.strides().vec();
      source.offset = tensor.storage_offset();
    }
    origin.source = int32_t(sources.size());
    sources.push_back(std::move(source));
  }

  // From now on, until the end of the run, those that are gone are to be shown too.
  void keep_gone() { keeps_gone_ = true; }

  // Shows every value whose memory is as it left it: the value, and the address of its storage and that.
  template <class Show>
  void each_storage(Show show) {
    for (const Memory& memory : memories_) show_storage(memory, memory.origin, show);
    for (const auto& [place, origin] : views_) show_storage(memories_[origin.memory], origin, show);
  }

  // Shows every storage that is there but has no memory now.
  template <class Show>
  void each_freed(Show show) const {
    for (const Memory& memory : memories_) {
      const auto held = memory.storage.lock();
      if (held && held->nbytes() == 0) show(held.get(), memory.storage);
    }
  }

  void clear() {
    if (!views_.empty()) views_.clear();  // which walks through all of its room
    memory_of_.clear();
    memories_.clear();
    unused_.clear();
    young_.fill(kNoMemory);
    old_.clear();
    added_ = 0;
    next_look_ = kFirstLook;
    keeps_gone_ = false;
    sources.clear();
  }

  std::vector<Source> sources;

 private:
  static constexpr uint32_t kNoMemory = UINT32_MAX;
  static constexpr size_t kYoung = 32;  // most memory is gone when so many others have come
  static constexpr size_t kFirstLook = 4096;

  template <class Show>
  static void show_storage(const Memory& memory, const Origin& origin, Show show) {
    const bool is_as_left = origin.serial == memory.serial && origin.version == memory.version;
    if (memory.plain && is_as_left) show(origin.value, memory.address, memory.storage);
  }

  uint32_t add_memory(const at::Tensor& tensor, const Place& place) {
    grow_older();
    uint32_t index = uint32_t(memories_.size());
    if (unused_.empty()) {
      memories_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    Memory& memory = memories_[index];
    memory.serial = ++added_;
    memory.address = place.memory;
    memory.root_geometry = place.geometry;
    memory.root_dtype = tensor.scalar_type();
    memory.plain = has_plain_storage(tensor);
    if (memory.plain) {
      memory.storage = tensor.storage().getWeakStorageImpl();
    } else {
      memory.object = WeakTensor(tensor.getIntrusivePtr());
    }
    memory_of_.add(place.memory, index);
    young_[added_ % kYoung] = index;
    return index;
  }

  // Looks at the one that was added so many before the next; what is there then stays for longer, and is looked at again
  // when there are twice as many of them as last time.
  void grow_older() {
    const uint32_t index = young_[(added_ + 1) % kYoung];
    if (index != kNoMemory && !let_go(index)) old_.push_back(index);
    if (old_.size() < next_look_) return;
    size_t left = 0;
    for (uint32_t each : old_) {
      if (!let_go(each)) old_[left++] = each;
    }
    old_.resize(left);
    next_look_ = std::max(kFirstLook, 2 * left);
  }

  bool let_go(uint32_t index) {
    Memory& memory = memories_[index];
    if (keeps_gone_ || !memory.is_gone()) return false;
    memory_of_.erase(memory.address);  // places of views are known by their serial to be void
    memory.let_go();
    unused_.push_back(index);
    return true;
  }

  MemoryTable memory_of_;
  std::vector<Memory> memories_;
  std::vector<uint32_t> unused_;  // places among them
  ska::flat_hash_map<Place, Origin, PlaceHash> views_;  // all but the roots
  std::array<uint32_t, kYoung> young_ = no_memories();
  std::vector<uint32_t> old_;
  uint32_t added_ = 0;
  size_t next_look_ = kFirstLook;
  bool keeps_gone_ = false;

  static std::array<uint32_t, kYoung> no_memories() {
    std::array<uint32_t, kYoung> none;
    none.fill(kNoMemory);
    return none;
  }
};

}  // namespace tensortap
