// What the dispatcher will do with a call: compute, or only call other operators, which are looked at instead.
#pragma once

#include <ATen/TracerMode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "operators.h"

namespace tensortap {

// Ops of our own are no part of an autograd graph, and no mode of the user sees them.
struct Unnoticed {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_modes{c10::python_ks};
};

// torch.jit.trace writes down every op of the thread, and would ours; see tracing.py.
inline bool is_being_traced() { return at::tracer::impl::is_dispatch_enabled(); }

// Whether ops are no part of the program: `torch.tensor` fills its result this way, and compilers try out shapes.
// Whatever looks at a tensor while PyTorch traces a function becomes part of the trace.
inline bool is_hidden(const c10::impl::LocalDispatchKeySet& local) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (local.excluded_.has(c10::DispatchKey::Python) || is_being_traced()) return true;
  return TorchDispatchModeTLS::any_modes_set() && (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE) ||
                                                   TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY));
}

// The dispatch keys of a call.
inline c10::DispatchKeySet keys_of(const c10::impl::LocalDispatchKeySet& local,
                                   Arguments arguments) {
  c10::DispatchKeySet keys;
  any_tensor(arguments, [&](const at::Tensor& tensor) {
    keys = keys | tensor.key_set();
    return false;
  });
  return (keys | local.included_) - local.excluded_;
}

inline bool is_wrapper_key(c10::DispatchKey key) {
  using K = c10::DispatchKey;
  switch (key) {
    case K::FuncTorchDynamicLayerFrontMode:
    case K::FuncTorchDynamicLayerBackMode:
    case K::FuncTorchGradWrapper:
    case K::FuncTorchBatched:
    case K::BatchedNestedTensor:
    case K::Batched:
    case K::Functionalize: return true;
    default: return false;
  }
}

inline bool is_optional_wrapper_key(c10::DispatchKey key) {
  using K = c10::DispatchKey;
  return key == K::FuncTorchVmapMode || key == K::VmapMode || c10::autocast_dispatch_keyset.has(key);
}

// What the dispatcher would do, from the highest key down to the first that has a say.
inline bool descends_for(const Operator& op, c10::DispatchKeySet keys) {
  const auto& handle = *op.handle;
  bool has_own_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  for (const auto key : keys) {
    if (is_wrapper_key(key)) return true;  // wherever it stands, it calls the op again with what it wraps
    const bool has_backend = c10::toBackendComponent(key) != c10::BackendComponent::InvalidBit;
    if (has_backend && handle.hasKernelForDispatchKey(key)) has_own_kernel = true;
  }
  while (!keys.empty()) {
    const auto key = keys.highestPriorityTypeId();
    if (key == c10::DispatchKey::Undefined) break;
    keys = keys.remove(key);
    if (is_optional_wrapper_key(key)) {
      if (handle.hasKernelForDispatchKey(key) && !handle.isKernelFallthroughKernel(key)) return true;
      continue;
    }
    if (key == c10::DispatchKey::Python) return false;
    if (c10::toBackendComponent(key) != c10::BackendComponent::InvalidBit) break;
  }
  if (!has_own_kernel) has_own_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  return op.has_composite && !has_own_kernel;
}

// Whether an op only calls others, which are looked at instead: a composite one, or a wrapper such as autocast's.
inline bool descends(Operator& op, c10::DispatchKeySet keys) {
  if (op.last_keys == keys.raw_repr() && op.last_keys != 0) return op.last_descends;
  op.last_keys = keys.raw_repr();
  return op.last_descends = descends_for(op, keys);
}

}  // namespace tensortap
