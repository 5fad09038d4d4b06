// Which node produced the tensor in front of us: the same idea as places.py, see there.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "memory.h"

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

inline uint64_t spec_hash(const at::Tensor& tensor, bool plain) {
  uint64_t hash = mix(uint64_t(tensor.scalar_type()) + 1, uint64_t(rank_of(tensor)));
  if (plain) {
    for (int64_t size : tensor.sizes()) hash = mix(hash, uint64_t(size));
  }
  return hash;
}

inline Place place_of(const at::Tensor& tensor, uint64_t* spec = nullptr) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool plain = has_plain_storage(tensor);
  const uint64_t hash = spec_hash(tensor, plain);
  if (spec != nullptr) *spec = hash;
  if (!plain) return {impl, hash};
  uint64_t geometry = mix(hash, uint64_t(tensor.storage_offset()) * 4 + tensor.is_neg() * 2 + tensor.is_conj());
  for (int64_t stride : tensor.strides()) geometry = mix(geometry, uint64_t(stride));
  return {impl->unsafe_storage().unsafeGetStorageImpl(), geometry};
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

// One storage of the run: how often it was written, by which node last, and the first place named in it.
struct Memory {
  uint32_t version = 0;
  int32_t writer = -1;
  Place root{};
  c10::ScalarType root_dtype{};
  bool plain = false;
  int32_t storage = -1;  // its place among the storages, if it is plain
  Content content = Content::kThere;
  int64_t written_bytes = 0;  // while it is garbage, or refilled
  int32_t arriving_node = -1;  // whose output it is, while it arrives or is filled
  Value arriving = kNoValue;
};

struct Origin {
  Value value = kNoValue;
  uint32_t version = 0;
  uint32_t memory = 0;
  int32_t source = -1;  // index into sources while it has not been used
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// All places of a run that have a name. Storages are held by weak pointers until the run is over, which frees
// their data as usual but keeps their address from being given to another one.
class Values {
 public:
  Origin* find(const Place& place) {
    auto found = origins_.find(place);
    return found == origins_.end() ? nullptr : &found->second;
  }

  // The value of a tensor, if it has one.
  Value value_of(const at::Tensor& tensor) {
    const Origin* origin = find(place_of(tensor));
    return origin == nullptr ? kNoValue : origin->value;
  }

  Memory* memory_at(const Place& place) {
    auto found = memory_of_.find(place.memory);
    return found == memory_of_.end() ? nullptr : &memories_[found->second];
  }

  // Whether the run has written to a storage.
  bool was_written(const void* storage) const {
    auto found = memory_of_.find(storage);
    return found != memory_of_.end() && memories_[found->second].version != 0;
  }

  Memory& memory(const Origin& origin) { return memories_[origin.memory]; }

  Origin& assign(const at::Tensor& tensor, const Place& place, Value value) {
    uint32_t index;
    auto found = memory_of_.find(place.memory);
    if (found != memory_of_.end()) {
      index = found->second;
    } else {
      index = uint32_t(memories_.size());
      memory_of_.emplace(place.memory, index);
      memories_.emplace_back();
      Memory& memory = memories_.back();
      memory.root = place;
      memory.root_dtype = tensor.scalar_type();
      memory.plain = has_plain_storage(tensor);
      if (memory.plain) {
        memory.storage = int32_t(storages_.size());
        storages_.emplace_back(tensor.storage().getWeakStorageImpl());
      } else {
        objects_.emplace_back(tensor.getIntrusivePtr());
      }
    }
    Origin& origin = origins_[place];
    origin = {value, memories_[index].version, index, -1};
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

  // Shows every value whose memory is as it left it: the value, and the address of its storage and that.
  template <class Show>
  void each_storage(Show show) {
    for (auto& [place, origin] : origins_) {
      const Memory& memory = memories_[origin.memory];
      if (memory.storage >= 0 && origin.version == memory.version) {
        show(origin.value, place.memory, storages_[size_t(memory.storage)]);
      }
    }
  }

  // Shows every storage that is there but has no memory now.
  template <class Show>
  void each_freed(Show show) const {
    for (const auto& storage : storages_) {
      const auto held = storage.lock();
      if (held && held->nbytes() == 0) show(held.get(), storage);
    }
  }

  void clear() {
    origins_.clear();
    memory_of_.clear();
    memories_.clear();
    storages_.clear();
    objects_.clear();
    sources.clear();
  }

  std::vector<Source> sources;

 private:
  ska::flat_hash_map<Place, Origin, PlaceHash> origins_;
  ska::flat_hash_map<const void*, uint32_t> memory_of_;
  std::vector<Memory> memories_;
  std::vector<WeakStorage> storages_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> objects_;
};

}  // namespace tensortap
