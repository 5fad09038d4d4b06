// Kinds of nodes: what is the same in nodes of different names, such as those of the layers of a model. A call of a known
// kind is not decoded again: Python puts its name and its inputs to what it knows.
#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include "calls.h"
#include "frames.h"

namespace tensortap {

class Kinds {
 public:
  explicit Kinds(const Decoder& decoder) : decoder_(decoder) {}

  // Notes what tells a call from calls of other kinds before it has run: operator, arguments other than tensors, what it
  // writes to, the lines of the program; and one of the kinds that are so, if there are any. Nothing if it cannot be told.
  void note(Call& call, Arguments arguments) {
    call.kind = {};
    if (!TENSORTAP_READS_FRAMES || call.op->return_count == 0) return;
    const Stack stack = codes_.stack([this](PyObject* code) { return int(decoder_.number("classify", "O", code)); });
    if (stack.ran_compiled) return;  // which every run is told
    uint64_t hash = mix(mix(uint64_t(call.op->index) + 1, call.arguments), stack.lines);
    hash = mix(hash, uint64_t(stack.is_called) << 1 | uint64_t(call.forward >= 0));
    tensors_.clear();
    for (const auto& argument : arguments) {
      if (!read(argument.boxed(), hash)) return;
    }
    for (const c10::TensorImpl* written : call.written) {
      const auto place = std::find(tensors_.begin(), tensors_.end(), written) - tensors_.begin();
      hash = mix(hash, uint64_t(place));
    }
    call.kind.call = hash;
    const auto found = kinds_.find(hash);
    if (found != kinds_.end()) call.kind.similar = found->second.front().number;
  }

  // The kind of a call that has ended; -1 if none has had such outputs.
  int32_t find(const Call& call, Outputs outputs) const {
    const auto found = kinds_.find(call.kind.call);
    if (found == kinds_.end()) return kNone;
    const uint64_t like = hash_of(outputs);
    for (const Kind& each : found->second) {
      if (each.outputs == like && like != 0) return each.number;
    }
    return kNone;
  }

  void remember(const Call& call, Outputs outputs, int32_t kind) {
    constexpr size_t kMostOutputs = 16;  // of one kind of call
    if (call.kind.call == 0 || kind < 0) return;
    auto& known = kinds_[call.kind.call];
    if (known.size() < kMostOutputs) known.push_back({hash_of(outputs), kind});
  }

  // Codes are forgotten, whose addresses stand for lines.
  void forget() {
    kinds_.clear();
    codes_.forget();
  }

 private:
  struct Kind {
    uint64_t outputs;
    int32_t number;
  };

  // What the hash of the arguments does not tell.
  bool read(const c10::IValue& value, uint64_t& hash) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) {
        hash = mix(hash, 12);
      } else if (is_number(tensor)) {
        if (tensor.is_complex()) return false;  // of which only half is in the hash
        hash = mix(hash, 20 + uint64_t(tensor.scalar_type()));
      } else {
        tensors_.push_back(tensor.unsafeGetTensorImpl());
      }
      return true;
    }
    if (value.isList()) {
      for (const auto& item : value.toListRef()) {
        if (!read(item, hash)) return false;
      }
      return true;
    }
    return value.isNone() || value.isInt() || value.isBool() || value.isDouble() || value.isString() || value.isDevice();
  }

  // What outputs are like; 0 if only Python can tell.
  static uint64_t hash_of(Outputs outputs) {
    uint64_t hash = outputs.size() + 1;
    for (const at::Tensor* output : outputs) {
      if (is_wrapper(*output) || !has_plain_storage(*output)) return 0;
      hash = mix(hash, uint64_t(output->scalar_type()));
      hash = mix(hash, uint64_t(output->device().type()) << 8 | uint8_t(output->device().index()));
      hash = mix(hash, uint64_t(output->dim()));
      for (int64_t size : output->sizes()) hash = mix(hash, uint64_t(size));
    }
    return hash;
  }

  const Decoder& decoder_;
  Codes codes_;
  std::vector<const c10::TensorImpl*> tensors_;  // of the call that is read
  ska::flat_hash_map<uint64_t, c10::SmallVector<Kind, 1>> kinds_;
};

}  // namespace tensortap
