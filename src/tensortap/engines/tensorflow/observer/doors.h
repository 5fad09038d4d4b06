// The two doors through which graphs come before they are executed.
//
// Sessions: TensorFlow has every graph that is run with debug options decorated. Ours are debug options that name a
// recorder; all others are passed on to TensorFlow's own debugger.
//
// Functions: a call names the type of its executor. Ours has two executors inside, that of TensorFlow for a call that
// nobody watches, and one with taps; they share the operations that have a state, such as random generators.
#pragma once

#include "functions.h"
#include "instrument.h"
#include "tensorflow/core/common_runtime/debugger_state_interface.h"

namespace tensortap {

constexpr const char* kWatchPrefix = "tensortap:";

// Whether a debug option names a recorder.
inline bool is_ours(const tf::DebugTensorWatch& watch) { return begins_with(watch.node_name(), kWatchPrefix); }

class Decorator : public tf::DebugGraphDecoratorInterface {
 public:
  Decorator(const tf::DebugOptions& options, const tf::DebugGraphDecoratorFactory& theirs) {
    tf::DebugOptions rest = options;
    rest.clear_debug_tensor_watch_opts();
    for (const auto& watch : options.debug_tensor_watch_opts()) {
      if (!is_ours(watch)) {
        *rest.add_debug_tensor_watch_opts() = watch;
      } else if (auto recorder = recorders().find(std::atoll(watch.node_name().c_str() + std::strlen(kWatchPrefix)))) {
        recorders_.push_back(std::move(recorder));
      }
    }
    if (rest.debug_tensor_watch_opts_size() > 0 && theirs) theirs_ = theirs(rest);
  }

  absl::Status DecorateGraph(tf::Graph* graph, tf::Device* device) override {
    if (theirs_ != nullptr) {
      if (absl::Status status = theirs_->DecorateGraph(graph, device); !status.ok()) return status;
    }
    for (const auto& recorder : recorders_) watch_graph(graph, device, recorder, "");
    return absl::OkStatus();
  }

  absl::Status PublishGraph(const tf::Graph& graph, const std::string& device) override {
    return theirs_ == nullptr ? absl::OkStatus() : theirs_->PublishGraph(graph, device);
  }

 private:
  std::vector<std::shared_ptr<Recorder>> recorders_;
  std::unique_ptr<tf::DebugGraphDecoratorInterface> theirs_;
};

// TensorFlow shows its factory to nobody, but replaces it on demand. An explicit instantiation may name what is
// private: that is how we learn whom to pass the debug options of others on to.
template <tf::DebugGraphDecoratorFactory** kMember>
struct Reveal {
  friend tf::DebugGraphDecoratorFactory* registered_factory() { return *kMember; }
};
tf::DebugGraphDecoratorFactory* registered_factory();
template struct Reveal<&tf::DebugGraphDecoratorRegistry::factory_>;

inline void open_door_of_sessions() {
  tf::DebugGraphDecoratorFactory* registered = registered_factory();
  const tf::DebugGraphDecoratorFactory theirs = registered == nullptr ? nullptr : *registered;
  tf::DebugGraphDecoratorRegistry::RegisterFactory(
      [theirs](const tf::DebugOptions& options) { return std::make_unique<Decorator>(options, theirs); });
}

}  // namespace tensortap
