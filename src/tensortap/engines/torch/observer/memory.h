// Which memory a tensor has, proven before anybody reads it; see memory.py.
#pragma once

#include <ATen/core/Tensor.h>

namespace tensortap {

// Tensors of classes that execute their ops in Python: most have only a shape, and even that may be worked out by code
// of the user. Levels of functorch and functional tensors likewise stand for others.
inline bool is_wrapper(const at::Tensor& tensor) {
  constexpr auto keys = c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                             c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                             c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Batched});
  return tensor.key_set().has_any(keys);
}

// What `Tensor.has_storage` says, without a virtual call.
inline bool has_storage(const at::Tensor& tensor) { return bool(tensor.unsafeGetTensorImpl()->unsafe_storage()); }

// Where the storage of a tensor begins; null if it has none, or one without memory.
inline const void* memory_of(const at::Tensor& tensor) {
  if (!has_storage(tensor)) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

// Whether a tensor is what nearly all are: dense, its elements as they are, in a storage. Of others more has to be asked.
inline bool is_usual(const at::Tensor& tensor) {
  constexpr auto keys = c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                        c10::autocast_dispatch_keyset | c10::backend_bitset_mask;
  return (tensor.key_set().raw_repr() & ~keys.raw_repr()) == 0 && has_storage(tensor);
}

// Whether a tensor is known by the storage it lies in.
inline bool has_plain_storage(const at::Tensor& tensor) {
  if (is_usual(tensor)) return true;
  if (!has_storage(tensor) || (is_wrapper(tensor) && memory_of(tensor) == nullptr)) return false;
  return tensor.layout() == c10::kStrided && !tensor.is_nested();
}

// Whether there is memory behind every element of a tensor whose elements lie in its storage.
inline bool covers(const at::Tensor& tensor) {
  if (!has_storage(tensor)) return false;
  const int64_t count = tensor.numel();
  if (count == 0) return true;
  int64_t extent = tensor.storage_offset() + count;
  if (!tensor.is_contiguous()) {
    extent = tensor.storage_offset() + 1;
    for (int64_t i = 0; i < tensor.dim(); ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const size_t nbytes = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  return memory_of(tensor) != nullptr && nbytes >= size_t(extent) * tensor.element_size();
}

// Whether a tensor has lost its memory: sharded programs free and refill that of their weights.
inline bool is_freed(const at::Tensor& tensor) {
  return !is_wrapper(tensor) && !tensor.is_meta() && has_plain_storage(tensor) && !covers(tensor);
}

}  // namespace tensortap
