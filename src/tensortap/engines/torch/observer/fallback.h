// Sees every operator as a kernel that PyTorch calls in place of its own, while a dispatch key is switched on for the thread.
// RecordFunction is told of every op inside of an op, too; here the key is switched off inside of what is looked at as
// a whole, and what is called there is called as if nobody looked. It costs a third.
//
// The key is the one that PyTorch has for modes in its own tests. Who has put something there gets RecordFunction instead.
#pragma once

#include <torch/library.h>

#include "callbacks.h"

namespace tensortap {

constexpr auto kFallbackKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// From the start of an op that is looked at to its end, whether or not it raises.
class Looking {
 public:
  Looking(Thread& thread, Observer& observer) : thread_(thread), observer_(observer) {}

  ~Looking() {
    if (!is_over_) end(Outputs());
  }

  // With what it has returned.
  template <class Results>
  void end(const Results& results) {
    is_over_ = true;
    thread_.opaque_depth = 0;
    guarded(thread_, observer_, "after an operator", [&] { observer_.end(thread_, results); });
  }

 private:
  Thread& thread_;
  Observer& observer_;
  bool is_over_ = false;
  c10::impl::ExcludeDispatchKeyGuard inside_unseen_{kFallbackKey};
};

// Inside of an op on a wrapper whose own ops count, PyTorch switches off all keys but those of its Python fallback and below.
// There RecordFunction tells of them.
class LookingInside {
 public:
  explicit LookingInside(Thread& thread)
      : thread_(thread), was_by_fallback_(thread.by_fallback), callback_(add_callback()) {
    thread.by_fallback = false;
    thread.depth = 0;
  }

  ~LookingInside() {
    at::removeCallback(callback_);
    thread_.by_fallback = was_by_fallback_;
    thread_.depth = thread_.opaque_depth = 0;
  }

 private:
  Thread& thread_;
  const bool was_by_fallback_;
  const at::CallbackHandle callback_;
};

// Who looks at the next op of a thread; null for nobody.
inline Observer* looking_at(Thread& thread) {
  if (thread.busy || thread.opaque_depth != 0 || is_foreign(thread)) return nullptr;
  Observer* observer = observer_of(thread);
  const bool is_so_seen = thread.observer != nullptr ? thread.by_fallback : observer != nullptr && observer->is_fallback;
  return is_so_seen ? observer : nullptr;
}

inline c10::DispatchKeySet below_ours(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFallbackKey);
}

inline void on_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = below_ours(keys);
  Thread& thread = this_thread();
  Observer* observer = looking_at(thread);
  if (observer == nullptr) {
    c10::impl::ExcludeDispatchKeyGuard inside_unseen(kFallbackKey);
    handle.redispatchBoxed(below, stack);
    return;
  }
  const c10::ArrayRef<const c10::IValue> arguments(stack->data(), stack->size());
  thread.depth = 1;
  thread.is_wrapped = false;
  guarded(thread, *observer, "before an operator",
          [&] { observer->start(thread, observer->operator_of(handle), arguments); });
  if (thread.opaque_depth != 0) {
    Looking looking(thread, *observer);
    handle.redispatchBoxed(below, stack);
    looking.end(c10::ArrayRef<c10::IValue>(*stack));
  } else if (thread.is_wrapped) {
    LookingInside looking(thread);
    handle.redispatchBoxed(below, stack);
  } else {  // it only calls others, which come here, too
    handle.redispatchBoxed(below, stack);
  }
}

// How many runs of this thread, one inside the other, see its ops so.
inline thread_local int fallback_uses = 0;

inline void switch_on_fallback() {
  if (fallback_uses++ == 0) c10::impl::tls_set_dispatch_key_included(kFallbackKey, true);
}

inline void switch_off_fallback() {
  if (--fallback_uses == 0) c10::impl::tls_set_dispatch_key_included(kFallbackKey, false);
}

}  // namespace tensortap
