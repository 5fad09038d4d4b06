// What a collective is told besides tensors: its group of ranks, and how it reduces.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#define TT_HAS_GROUPS
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include <string>

namespace tensortap {

inline const c10::ClassType* class_of(const c10::IValue& value) {
  return value.isObject() ? value.toObjectRef().type().get() : nullptr;
}

// The name of a group, or of a reduction in capitals; empty for everything else.
inline std::string communication_text(const c10::IValue& value) {
  const c10::ClassType* type = class_of(value);
  if (type == nullptr || !type->name().has_value()) return {};
#ifdef TT_HAS_GROUPS
  const std::string name = type->name()->name();
  if (name == "ProcessGroup") return value.toCustomClass<c10d::ProcessGroup>()->getGroupName();
  if (name == "ReduceOp") {
    static constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
    const size_t number = size_t(value.toCustomClass<c10d::ReduceOp>()->op_);
    return number < std::size(kNames) ? kNames[number] : "";
  }
#endif
  return {};
}

// What tells an argument that is an object from others: two groups are not the same call.
inline uint64_t communication_hash(const c10::IValue& value) {
  const std::string text = communication_text(value);
  return text.empty() ? 10 : std::hash<std::string>()(text);
}

}  // namespace tensortap
