// What has to be known of single operations.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace tensortap {

namespace tf = tensorflow;

inline bool begins_with(const std::string& text, const char* head) { return text.rfind(head, 0) == 0; }

// The inputs that name variables which the node writes.
inline std::vector<int> written_variables(const tf::Node& node) {
  const std::string& op = node.type_string();
  const bool assigns = op == "AssignVariableOp" || op == "AssignAddVariableOp" || op == "AssignSubVariableOp" ||
                       begins_with(op, "ResourceApply") || begins_with(op, "ResourceSparseApply") ||
                       begins_with(op, "ResourceScatter") || op == "ResourceStridedSliceAssign";
  std::vector<int> inputs;
  for (int i = 0; assigns && i < node.num_inputs(); ++i) {
    if (node.input_type(i) == tf::DT_RESOURCE) inputs.push_back(i);
  }
  return inputs;
}

// The type of the variables that it writes.
inline tf::DataType variable_type(const tf::Node& node) {
  tf::DataType type;
  for (const char* attribute : {"dtype", "T"}) {
    if (tf::GetNodeAttr(node.attrs(), attribute, &type).ok()) return type;
  }
  return tf::DT_INVALID;
}

// In a loop it has the same value in every iteration.
inline bool is_invariant(const tf::Node& node) {
  bool is_constant = false;
  return node.IsEnter() && tf::GetNodeAttr(node.attrs(), "is_constant", &is_constant).ok() && is_constant;
}

// Whether the node can make a NaN or an infinity of inputs that have none. Those that only move, choose or compare
// values cannot, and holding on to inputs has its price: their memory is not reused for the output.
inline bool can_make_bad(const tf::Node& node) {
  static const auto* cannot = new std::unordered_set<std::string>{
      "Abs", "ArgMax", "ArgMin", "Assert", "BatchToSpace", "BatchToSpaceND", "Bitcast", "BroadcastTo", "Ceil",
      "CheckNumerics", "ClipByValue", "Concat", "ConcatV2", "DeepCopy", "DepthToSpace", "DynamicPartition",
      "DynamicStitch", "EnsureShape", "Enter", "Exit", "ExpandDims", "Fill", "Floor", "Gather", "GatherNd",
      "GatherV2", "Identity", "IdentityN", "InvertPermutation", "LoopCond", "MatrixBandPart", "MatrixDiag",
      "MatrixDiagPart", "MatrixDiagPartV3", "MatrixDiagV3", "MaxPool", "MaxPool3D", "MaxPoolV2", "Maximum", "Merge",
      "Minimum", "MirrorPad", "Neg", "NextIteration", "OnesLike", "Pack", "Pad", "PadV2", "ParallelConcat",
      "PlaceholderWithDefault", "PreventGradient", "RefEnter", "RefExit", "RefIdentity", "RefMerge",
      "RefNextIteration", "RefSelect", "RefSwitch", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Reshape", "Reverse",
      "ReverseSequence", "ReverseV2", "Rint", "Roll", "Round", "ScatterNd", "Select", "SelectV2", "Shape", "ShapeN",
      "Sigmoid", "Sign", "Size", "Slice", "Snapshot", "SpaceToBatch", "SpaceToBatchND", "SpaceToDepth", "Split",
      "SplitV", "Squeeze", "StopGradient", "StridedSlice", "StridedSliceGrad", "Switch", "Tanh",
      "TensorArrayGatherV3", "TensorArrayReadV3", "TensorListGetItem", "TensorListStack", "TensorScatterUpdate",
      "Tile", "TopK", "TopKV2", "Transpose", "Unpack", "Where", "ZerosLike", "_Arg", "_HostRecv", "_Recv",
      "_SwitchN"};
  return cannot->count(node.type_string()) == 0;
}

}  // namespace tensortap
