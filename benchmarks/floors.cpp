// The least that an observer of every operator costs, in the two ways in which PyTorch can be made to tell of them:
// RecordFunction, and a kernel in place of all others. Both do nothing.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction&) { return nullptr; }
void on_end(const at::RecordFunction&, at::ObserverContext*) {}

// Ops inside of an op are not told of, unless it only calls others.
void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static thread_local ska::flat_hash_map<const void*, bool> composite;
  auto found = composite.find(&op.schema());
  if (found == composite.end()) {
    const bool is_composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    found = composite.emplace(&op.schema(), is_composite).first;
  }
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (found->second) {
    op.redispatchBoxed(below, stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  op.redispatchBoxed(below, stack);
}

}  // namespace

EXPORT void floor_by_recording() {
  at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                 .needsInputs(true)
                                 .needsOutputs(true)
                                 .scopes({at::RecordScope::FUNCTION}));
}

EXPORT void floor_by_kernel() {
  static auto* library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&on_call>());
    return made;
  }();
  (void)library;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}
