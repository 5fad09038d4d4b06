// Storages that a program frees and fills again, as sharded programs do with those of whole weights. When such a one comes
// into a run it has memory again, but nobody has written it yet: what it holds is garbage.
#pragma once

#include <c10/util/flat_hash_map.h>

#include "values.h"

namespace tensortap {

class FreedStorages {
 public:
  // A run is over: takes note of what has no memory now.
  void note(const Values& values) {
    for (auto it = known_.begin(); it != known_.end();) it = it->second.expired() ? known_.erase(it) : std::next(it);
    values.each_freed([this](const void* address, const WeakStorage& storage) {
      if (known_.size() < kMost) known_.emplace(address, storage);
    });
  }

  // Whether a tensor lies in memory that a storage has got back after it was freed.
  bool has(const at::Tensor& tensor) const {
    if (known_.empty() || !has_plain_storage(tensor)) return false;
    return known_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) != known_.end();
  }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  static constexpr size_t kMost = 100'000;
  ska::flat_hash_map<const void*, WeakStorage> known_;  // weak pointers keep an address from being used again
};

}  // namespace tensortap
