// Adds taps to a graph that is about to be executed.
//
// A tap is executed after the node it looks at and before everything that uses what the node has made. So it sees the
// value that the program sees, also of variables that are written in place; memory can be reused as if nobody had
// looked, as the tap has let go of it by then; and the runtime has no reason to send the next operation to another thread.
#pragma once

#include <string>
#include <unordered_set>

#include "ops.h"
#include "stop.h"
#include "tap.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace tensortap {

constexpr size_t kLargeConstant = 1024;  // bytes; what is larger is not described

// What a node makes: its outputs, and then the variables that it writes.
struct Made {
  tf::Node* node;
  int output;        // or the input that names the variable
  bool is_variable;
  tf::DataType dtype;
};

class Instrument {
 public:
  Instrument(tf::Graph* graph, const std::string& device, std::shared_ptr<Recorder> recorder)
      : graph_(graph), device_(device), recorder_(std::move(recorder)) {
    for (tf::Node* node : graph->op_nodes()) nodes_.push_back(node);
    list_outputs();
  }

  // False if Python could not be asked; the graph is then as it was.
  bool add_taps(const std::string& function, bool is_readable) {
    lanes_.assign(made_.size(), 0);
    first_ = recorder_->watch->number_outputs(int64_t(made_.size()));
    if (!ask(function)) return false;
    for (size_t i = 0; is_readable && i < nodes_.size(); ++i) tap_node(i);
    for (size_t i = 0; is_readable && i < made_.size(); ++i) {
      if ((lanes_[i] & kStopLane) != 0 && !made_[i].is_variable) add_stop(made_[i], first_ + int64_t(i));
    }
    return true;
  }

 private:
  void list_outputs() {
    for (tf::Node* node : nodes_) {
      begins_.push_back(made_.size());
      for (int slot = 0; slot < node->num_outputs(); ++slot) {
        made_.push_back({node, slot, false, tf::BaseType(node->output_type(slot))});
      }
      const size_t outputs = made_.size();
      for (int input : written_variables(*node)) made_.push_back({node, input, true, variable_type(*node)});
      outputs_.push_back(int32_t(made_.size() - begins_.back()));
      written_.push_back(int32_t(made_.size() - outputs));
    }
    begins_.push_back(made_.size());
  }

  bool ask(const std::string& function) {
    const std::string graph_def = describe().SerializeAsString();
    std::vector<int32_t> dtypes;
    for (const Made& made : made_) dtypes.push_back(int32_t(made.dtype));
    Description description{recorder_->watch->handle, function.c_str(),        device_.c_str(),
                            graph_def.data(),         int64_t(graph_def.size()), int64_t(nodes_.size()),
                            int64_t(made_.size()),    outputs_.data(),         written_.data(),
                            dtypes.data(),            first_,                  lanes_.data()};
    return recorder_->watch->describe(&description) == 0;
  }

  // The graph without the values of large constants.
  tf::GraphDef describe() const {
    tf::GraphDef graph;
    for (const tf::Node* node : nodes_) {
      tf::NodeDef* def = graph.add_node();
      def->set_name(node->name());
      def->set_op(node->type_string());
      def->set_device(node->assigned_device_name());
      *def->mutable_experimental_debug_info() = node->def().experimental_debug_info();
      for (const auto& [name, value] : node->def().attr()) {
        if (value.has_tensor() && value.tensor().ByteSizeLong() > kLargeConstant) continue;
        (*def->mutable_attr())[name] = value;
      }
      std::vector<const tf::Edge*> inputs(size_t(node->num_inputs()));
      for (const tf::Edge* edge : node->in_edges()) {
        if (!edge->IsControlEdge()) inputs[size_t(edge->dst_input())] = edge;
      }
      for (const tf::Edge* edge : inputs) {
        if (edge != nullptr) def->add_input(edge->src()->name() + ":" + std::to_string(edge->src_output()));
      }
      for (const tf::Edge* edge : node->in_edges()) {
        if (edge->IsControlEdge() && edge->src()->IsOp()) def->add_input("^" + edge->src()->name());
      }
    }
    return graph;
  }

  void tap_node(size_t index) {
    std::vector<size_t> wanted;
    for (size_t i = begins_[index]; i < begins_[index + 1]; ++i) {
      if ((lanes_[i] & ~kStopLane) != 0) wanted.push_back(i);
    }
    if (wanted.empty()) return;
    if (!nodes_[index]->IsSwitch()) return add_tap(nodes_[index], wanted);
    for (size_t each : wanted) add_tap(nodes_[index], {each});  // only one of its outputs is alive
  }

  void add_tap(tf::Node* node, const std::vector<size_t>& wanted) {
    struct Input {
      tf::Node* node;
      int slot;
      tf::DataType dtype;
      int64_t number;
    };
    std::vector<Input> inputs;
    std::vector<int32_t> lanes;
    bool has_variables = false;
    for (size_t place : wanted) {
      const Made& made = made_[place];
      Input input{node, made.output, made.dtype, first_ + int64_t(place)};
      if (made.is_variable) {
        const tf::Edge* edge;
        if (!node->input_edge(made.output, &edge).ok()) continue;
        input = {edge->src(), edge->src_output(), tf::DT_RESOURCE, input.number};
        has_variables = true;
      }
      inputs.push_back(input);
      lanes.push_back(int32_t(lanes_[place] & ~kStopLane));
    }
    if (recorder_->watch->keep_bad > 0 && can_make_bad(*node)) {
      for (int i = 0; i < node->num_inputs(); ++i) {
        const tf::Edge* edge;
        if (!node->input_edge(i, &edge).ok() || code_of(node->input_type(i)) < 0) continue;
        inputs.push_back({edge->src(), edge->src_output(), tf::BaseType(node->input_type(i)), number_of(*edge)});
      }
    }

    tf::NodeDef def;
    def.set_name(graph_->NewName("tensortap_tap/" + std::to_string(recorder_->id)));
    def.set_op(kTapOp);
    def.set_device(node->assigned_device_name());
    auto& attributes = *def.mutable_attr();
    attributes["recorder"].set_i(recorder_->id);
    attributes["is_invariant"].set_b(is_invariant(*node));
    for (const Input& input : inputs) {
      def.add_input(input.node->name() + ":" + std::to_string(input.slot));
      attributes["T"].mutable_list()->add_type(input.dtype);
      attributes["numbers"].mutable_list()->add_i(input.number);
    }
    for (int32_t each : lanes) attributes["lanes"].mutable_list()->add_i(each);
    absl::Status status;
    tf::Node* tap = graph_->AddNode(std::move(def), &status);
    if (!status.ok()) return recorder_->fault();
    tap->set_assigned_device_name_index(node->assigned_device_name_index());
    // Those that follow, before the tap is one of them.
    std::vector<tf::Node*> followers;
    for (const tf::Edge* edge : node->out_edges()) {
      const bool is_follower = has_variables || (!edge->IsControlEdge() && is_among(wanted, edge->src_output()));
      if (is_follower && edge->dst()->IsOp() && !edge->dst()->IsMerge() && edge->dst()->type_string() != kTapOp) {
        followers.push_back(edge->dst());
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) graph_->AddEdge(inputs[i].node, inputs[i].slot, tap, int(i));
    if (has_variables) graph_->AddControlEdge(node, tap);
    for (tf::Node* follower : followers) graph_->AddControlEdge(tap, follower);
  }

  // After all taps: they see what the node has made, not what is handed on.
  void add_stop(const Made& made, int64_t number) {
    tf::Node* node = made.node;
    if (tf::IsRefType(node->output_type(made.output)) || node->IsControlFlow()) return;
    std::vector<std::pair<tf::Node*, int>> users;
    for (const tf::Edge* edge : node->out_edges()) {
      if (!edge->IsControlEdge() && edge->src_output() == made.output && edge->dst()->type_string() != kTapOp) {
        users.emplace_back(edge->dst(), edge->dst_input());
      }
    }
    tf::NodeDef def;
    def.set_name(graph_->NewName("tensortap_stop/" + std::to_string(recorder_->id)));
    def.set_op(kStopOp);
    def.set_device(node->assigned_device_name());
    def.add_input(node->name() + ":" + std::to_string(made.output));
    auto& attributes = *def.mutable_attr();
    attributes["T"].set_type(made.dtype);
    attributes["recorder"].set_i(recorder_->id);
    attributes["number"].set_i(number);
    absl::Status status;
    tf::Node* stop = graph_->AddNode(std::move(def), &status);
    if (!status.ok()) return recorder_->fault();
    stop->set_assigned_device_name_index(node->assigned_device_name_index());
    graph_->AddEdge(node, made.output, stop, 0);
    for (const auto& [user, place] : users) {
      if (!graph_->UpdateEdge(stop, 0, user, place).ok()) recorder_->fault();
    }
  }

  bool is_among(const std::vector<size_t>& wanted, int slot) const {
    for (size_t place : wanted) {
      if (!made_[place].is_variable && made_[place].output == slot) return true;
    }
    return false;
  }

  int64_t number_of(const tf::Edge& edge) {
    if (places_.empty()) {
      for (size_t i = 0; i < nodes_.size(); ++i) places_[nodes_[i]->id()] = begins_[i];
    }
    return first_ + int64_t(places_[edge.src()->id()]) + edge.src_output();
  }

  tf::Graph* const graph_;
  const std::string device_;
  const std::shared_ptr<Recorder> recorder_;
  std::vector<tf::Node*> nodes_;
  std::vector<Made> made_;
  std::vector<size_t> begins_;  // by node: place of its first output in made_
  std::vector<int32_t> outputs_, written_;
  std::vector<uint32_t> lanes_;
  std::unordered_map<int, size_t> places_;
  int64_t first_ = 0;
};

}  // namespace tensortap
