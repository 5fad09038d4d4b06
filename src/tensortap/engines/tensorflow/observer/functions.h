// Functions: executors that can watch what they execute, and calls that use them.
#pragma once

#include <map>

#include "instrument.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"

namespace tensortap {

constexpr const char* kExecutorType = "tensortap";

// The recorder of the functions that this thread calls, while it is in a block that watches them.
inline thread_local std::shared_ptr<Recorder> armed_here;

void watch_graph(tf::Graph* graph, tf::Device* device, const std::shared_ptr<Recorder>& recorder,
                 const std::string& function);

// Operations with a state, used by all executors of one function. They are made by the first that needs them.
class SharedKernels {
 public:
  explicit SharedKernels(const tf::LocalExecutorParams& params) : params_(params) {}
  ~SharedKernels() {
    for (auto& [name, kernel] : kernels_) params_.delete_kernel(kernel);
  }

  // What an executor asks instead of TensorFlow.
  static tf::LocalExecutorParams params_for(const std::shared_ptr<SharedKernels>& shared) {
    tf::LocalExecutorParams params = shared->params_;
    params.create_kernel = [shared](const std::shared_ptr<const tf::NodeProperties>& node, tf::OpKernel** kernel) {
      return shared->create(node, kernel);
    };
    params.delete_kernel = [shared](tf::OpKernel* kernel) { shared->release(kernel); };
    return params;
  }

 private:
  absl::Status create(const std::shared_ptr<const tf::NodeProperties>& node, tf::OpKernel** kernel) {
    if (!node->op_def->is_stateful() || calls_functions(*node->op_def)) return params_.create_kernel(node, kernel);
    std::lock_guard<std::mutex> hold(lock_);
    tf::OpKernel*& shared = kernels_[node->node_def.name()];
    if (shared == nullptr) {
      if (absl::Status status = params_.create_kernel(node, &shared); !status.ok()) {
        kernels_.erase(node->node_def.name());
        return status;
      }
      is_shared_.insert(shared);
    }
    *kernel = shared;
    return absl::OkStatus();
  }

  void release(tf::OpKernel* kernel) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (is_shared_.count(kernel) != 0) return;
    }
    params_.delete_kernel(kernel);
  }

  static bool calls_functions(const tf::OpDef& op) {
    return std::any_of(op.attr().begin(), op.attr().end(),
                       [](const auto& attribute) { return attribute.type().find("func") != std::string::npos; });
  }

  const tf::LocalExecutorParams params_;
  std::mutex lock_;
  std::unordered_map<std::string, tf::OpKernel*> kernels_;
  std::unordered_set<tf::OpKernel*> is_shared_;
};

inline absl::Status new_plain_executor(const tf::LocalExecutorParams& params, const tf::Graph& graph,
                                       std::unique_ptr<tf::Executor>* executor) {
  return tf::NewExecutor("DEFAULT", params, graph, executor);
}

// Executes a function with or without taps.
class SwitchingExecutor : public tf::Executor {
 public:
  SwitchingExecutor(const tf::LocalExecutorParams& params, const tf::Graph& graph, std::string function,
                    std::shared_ptr<Recorder> recorder)
      : shared_(std::make_shared<SharedKernels>(params)),
        device_(params.device),
        graph_(graph.flib_def()),
        function_(std::move(function)),
        always_(std::move(recorder)) {
    graph_.Copy(graph);
  }

  absl::Status initialize() { return new_plain_executor(SharedKernels::params_for(shared_), graph_, &plain_); }

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { choose().RunAsync(args, std::move(done)); }

  tf::Executor& choose() {
    const std::shared_ptr<Recorder>& recorder = always_ != nullptr ? always_ : armed_here;
    if (recorder == nullptr || !recorder->is_armed()) return *plain_;
    std::lock_guard<std::mutex> hold(lock_);
    auto& tapped = tapped_[recorder->id];
    if (tapped == nullptr) {
      tf::Graph copy(graph_.flib_def());
      copy.Copy(graph_);
      watch_graph(&copy, device_, recorder, function_);
      if (!new_plain_executor(SharedKernels::params_for(shared_), copy, &tapped).ok()) {
        tapped.reset();
        recorder->fault();
        return *plain_;
      }
    }
    return *tapped;
  }

  const std::shared_ptr<SharedKernels> shared_;
  tf::Device* const device_;
  tf::Graph graph_;
  const std::string function_;
  const std::shared_ptr<Recorder> always_;  // of what a watched graph calls
  std::unique_ptr<tf::Executor> plain_;
  std::mutex lock_;
  std::map<int64_t, std::unique_ptr<tf::Executor>> tapped_;
};

class SwitchingFactory : public tf::ExecutorFactory {
 public:
  SwitchingFactory(std::string function, int64_t recorder) : function_(std::move(function)), recorder_(recorder) {}

  absl::Status NewExecutor(const tf::LocalExecutorParams& params, const tf::Graph& graph,
                           std::unique_ptr<tf::Executor>* executor) override {
    auto recorder = recorder_ == 0 ? nullptr : recorders().find(recorder_);
    if (recorder_ != 0 && recorder == nullptr) return new_plain_executor(params, graph, executor);
    auto switching = std::make_unique<SwitchingExecutor>(params, graph, function_, std::move(recorder));
    absl::Status status = switching->initialize();
    if (status.ok()) *executor = std::move(switching);
    return status;
  }

 private:
  const std::string function_;
  const int64_t recorder_;
};

// The type of the executors of one function for one recorder; both 0 for what is called eagerly.
inline std::string executor_type(const std::string& function, int64_t recorder) {
  static auto* lock = new std::mutex;
  static auto* known = new std::unordered_set<std::string>;
  const std::string type =
      recorder == 0 ? kExecutorType : std::string(kExecutorType) + ":" + std::to_string(recorder) + ":" + function;
  std::lock_guard<std::mutex> hold(*lock);
  if (known->insert(type).second) tf::ExecutorFactory::Register(type, new SwitchingFactory(function, recorder));
  return type;
}

// Operations that execute functions whose executors are named with the function. (Those of tf.data, such as the loop
// over a dataset inside a function, ask for executors of their own, and are not seen.)
inline bool runs_functions(const std::string& op) {
  return op == "While" || op == "StatelessWhile" || op == "If" || op == "StatelessIf" || op == "Case" ||
         op == "StatelessCase";
}

// Has the functions that a graph calls executed by executors that watch them too.
inline void watch_calls(tf::Graph* graph, int64_t recorder) {
  for (tf::Node* node : graph->op_nodes()) {
    const std::string& op = node->type_string();
    if (op == "PartitionedCall" || op == "StatefulPartitionedCall") {
      tf::NameAttrList function;
      std::string type;
      if (!tf::GetNodeAttr(node->attrs(), "f", &function).ok()) continue;
      if (tf::GetNodeAttr(node->attrs(), "executor_type", &type).ok() && !type.empty()) continue;
      node->AddAttr("executor_type", executor_type(function.name(), recorder));
    } else if (runs_functions(op)) {
      const auto attributes = node->def().attr();  // a copy: what follows changes them
      for (auto [name, value] : attributes) {
        const auto name_executor = [recorder](tf::NameAttrList* function) {
          (*function->mutable_attr())["_executor"].set_s(executor_type(function->name(), recorder));
        };
        if (value.has_func()) {
          name_executor(value.mutable_func());
        } else if (value.has_list() && value.list().func_size() > 0) {
          for (auto& function : *value.mutable_list()->mutable_func()) name_executor(&function);
        } else {
          continue;
        }
        node->ClearAttr(name);
        node->AddAttr(name, value);
      }
      // A session shares operations with a state by their names; this one is not the same any more.
      if (node->op_def().is_stateful()) node->set_name(graph->NewName(node->name() + "/tensortap"));
    }
  }
}

inline void watch_graph(tf::Graph* graph, tf::Device* device, const std::shared_ptr<Recorder>& recorder,
                        const std::string& function) {
  Instrument instrument(graph, device->name(), recorder);
  if (!instrument.add_taps(function, device->device_type() == tf::DEVICE_CPU)) return recorder->fault();
  watch_calls(graph, recorder->id);
}

}  // namespace tensortap
