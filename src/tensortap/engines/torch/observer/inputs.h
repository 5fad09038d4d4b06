// What a call is given: which values its tensors are, and a hash of everything else. Tensors that nobody has named get a
// name here.
#pragma once

#include <algorithm>
#include <vector>

#include "bad_values.h"
#include "contents.h"
#include "scopes.h"

namespace tensortap {

class Inputs {
 public:
  Inputs(const Decoder& decoder, NameEntries& entries, Nodes& nodes, const Scopes& scopes, Contents& contents,
         Recording& recording, BadValues& bad, Run& run, int32_t const_label, int32_t as_strided_label)
      : decoder_(decoder),
        entries_(entries),
        nodes_(nodes),
        scopes_(scopes),
        contents_(contents),
        recording_(recording),
        bad_(bad),
        run_(run),
        const_label_(const_label),
        as_strided_label_(as_strided_label) {}

  // Takes note of the tensors among the arguments and hashes everything else.
  void read(Call& call, Arguments arguments) {
    unnamed_.clear();
    const uint64_t written = call.op->written_by(arguments);
    uint64_t hash = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      hash = read_argument(call, arguments[i], hash, i < 64 && (written >> i & 1) != 0);
    }
    call.arguments = hash;
  }

  // Names those of the tensors that came from nowhere, once the op that uses them first has a name itself.
  void name_unnamed(Call& call) {
    for (auto& [position, tensor] : unnamed_) call.inputs[position] = name(call, tensor);
    unnamed_.clear();
  }

 private:
  uint64_t read_argument(Call& call, const Argument& argument, uint64_t hash, bool written) {
    switch (argument.kind) {
      case Argument::kTensor: return read_argument(call, argument.tensor(), hash, written);
      case Argument::kNothing: return mix(hash, 3);
      case Argument::kInteger: return mix(mix(hash, 5), uint64_t(argument.integer));
      case Argument::kBoolean: return mix(hash, argument.boolean ? 6 : 7);
      case Argument::kNumber: {
        uint64_t bits;
        std::memcpy(&bits, &argument.number, sizeof bits);
        return mix(mix(hash, 8), bits);
      }
      case Argument::kTensors:
        hash = mix(mix(hash, 9), argument.count);
        for (const at::Tensor& tensor : argument.tensors()) hash = read_argument(call, tensor, hash, written);
        return hash;
      case Argument::kReferences:
        hash = mix(mix(hash, 9), argument.count);
        for (const at::Tensor& tensor : argument.references()) hash = read_argument(call, tensor, hash, written);
        return hash;
      case Argument::kIntegers:
        hash = mix(mix(hash, 9), argument.count);
        for (int64_t number : argument.integers()) hash = mix(mix(hash, 5), uint64_t(number));
        return hash;
      case Argument::kItems:
        hash = mix(mix(hash, 9), argument.count);
        for (const auto& item : argument.items()) hash = read_argument(call, argument_of(item), hash, written);
        return hash;
      case Argument::kOther: return hash_of_other(argument.boxed(), hash);
    }
    return hash;
  }

  uint64_t read_argument(Call& call, const at::Tensor& tensor, uint64_t hash, bool written) {
    if (!tensor.defined()) return mix(hash, 3);
    if (is_number(tensor)) {
      uint64_t bits = 0;
      std::memcpy(&bits, tensor.const_data_ptr(), std::min<size_t>(8, tensor.element_size()));
      return mix(mix(hash, 4), bits);
    }
    read_tensor(call, tensor, written);
    if (written) {
      call.written.push_back(tensor.unsafeGetTensorImpl());
      if (call.op->keeps_written) call.kept.push_back(tensor);
    }
    return mix(hash, 11);
  }

  static uint64_t hash_of_other(const c10::IValue& value, uint64_t hash) {
    if (value.isString()) return mix(hash, std::hash<std::string>()(value.toStringRef()));
    if (value.isDevice()) return mix(mix(hash, uint64_t(value.toDevice().type())), uint64_t(value.toDevice().index()));
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      return mix(mix(hash, std::hash<double>()(number.real())), std::hash<double>()(number.imag()));
    }
    return mix(hash, communication_hash(value));
  }

  void read_tensor(Call& call, const at::Tensor& tensor, bool written) {
    if (bad_.are_sought()) call.tensors.add(tensor);
    const Place place = place_of(tensor);
    Origin* origin = run_.values.find(place);
    if (origin == nullptr && scopes_.may_have_new_state() && decoder_.number("find_new_state", nullptr) != 0) {
      origin = run_.values.find(place);
    }
    if (origin == nullptr) {
      unnamed_.emplace_back(call.inputs.size(), tensor);
      call.inputs.push_back(kNoValue);
      return;
    }
    if (origin->source >= 0) {
      use_source(*origin, tensor);
      origin = run_.values.find(place);
    }
    Memory& memory = run_.values.memory(*origin);
    if (contents_.has_arrived(call, memory, origin->value, written) && run_.plan->watches) {
      bad_.note(origin->value, recording_.emit(memory.arriving_node, slot_of(origin->value), tensor, false));
    }
    if (origin->version != memory.version && memory.writer != kNone) call.add_control(memory.writer);
    call.inputs.push_back(origin->value);
  }

  // Makes a tensor from outside, used for the first time, a node of the run.
  void use_source(Origin& origin, const at::Tensor& tensor) {
    const int32_t node = run_.values.sources[size_t(origin.source)].node;
    const Value value = origin.value;
    origin.source = -1;
    run_.nodes.push_back(node);
    if (run_.plan->watches) emit_source(node, value, tensor);
  }

  void emit_source(int32_t node, Value value, const at::Tensor& tensor) {
    int64_t began = 0;
    const int kinds = recording_.emit(node, 0, tensor, false, began);
    if (kinds <= 0) return;
    bad_.note(value, kinds);
    bad_.note_arrival(value, tensor);
    const at::Tensor* output = &tensor;
    bad_.show(nullptr, node, Outputs(output), kinds, began);
  }

  // Names a tensor after the op that uses it first.
  Value name(const Call& call, const at::Tensor& tensor) {
    uint64_t spec;
    const Place place = place_of(tensor, &spec);
    if (Origin* found = run_.values.find(place)) return found->value;  // the same op takes it twice
    const int32_t scope = inner_scope(call.entry);
    Memory* memory = run_.values.memory_at(place);
    const bool is_view = memory != nullptr && memory->root_dtype == tensor.scalar_type() && memory->plain &&
                         has_plain_storage(tensor);
    return is_view ? name_hidden_view(scope, tensor, place, spec, memory->origin, memory->writer)
                   : name_constant(call, scope, tensor, place, spec);
  }

  int32_t inner_scope(int32_t entry) {
    if (entries_[entry].inner_scope == kNone) {
      const int32_t inner = int32_t(decoder_.number("inner_scope", "i", entry));
      entries_[entry].inner_scope = inner;
    }
    return entries_[entry].inner_scope;
  }

  Value name_constant(const Call& call, int32_t scope, const at::Tensor& tensor, const Place& place, uint64_t spec) {
    const int32_t entry = entries_.next(scope, const_label_);
    const int32_t node = nodes_.constant(entry, tensor, spec);
    const Value value = value_of(entry, 0);
    Origin& origin = run_.values.assign(tensor, place, value);
    run_.nodes.push_back(node);
    const bool is_awaited = contents_.is_awaited(call, tensor, run_.values.memory(origin), node, value);
    if (!is_awaited && run_.plan->watches) emit_source(node, value, tensor);
    return value;
  }

  // A view, made where nobody could see it, of memory that does have a name.
  Value name_hidden_view(int32_t scope, const at::Tensor& tensor, const Place& place, uint64_t spec, Origin& root,
                         int32_t writer) {
    const Value root_value = root.value;
    if (root.source >= 0) {
      const Source source = run_.values.sources[size_t(root.source)];
      Unnoticed unnoticed;
      use_source(root, tensor.as_strided(source.sizes, source.strides, source.offset));
    }
    const int32_t entry = entries_.next(scope, as_strided_label_);
    const int32_t node = nodes_.hidden_view(entry, tensor, spec, place.geometry, root_value, writer);
    const Value value = value_of(entry, 0);
    run_.values.assign(tensor, place, value);
    run_.nodes.push_back(node);
    if (run_.plan->watches) bad_.note(value, recording_.emit(node, 0, tensor, false));
    return value;
  }

  const Decoder& decoder_;
  NameEntries& entries_;
  Nodes& nodes_;
  const Scopes& scopes_;
  Contents& contents_;
  Recording& recording_;
  BadValues& bad_;
  Run& run_;
  const int32_t const_label_, as_strided_label_;
  std::vector<std::pair<size_t, at::Tensor>> unnamed_;  // with their place among the inputs
};

}  // namespace tensortap
