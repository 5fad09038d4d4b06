// Which node a call is: recognised by the numbers of its variants (name_entries.h), or built by Python if it is new.
#pragma once

#include "kinds.h"
#include "name_entries.h"
#include "run.h"

namespace tensortap {

inline PyObject* wrapped(Outputs outputs) {
  Object tuple(PyTuple_New(Py_ssize_t(outputs.size())));
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), Object(THPVariable_Wrap(*outputs[i])).release());
  }
  return tuple.release();
}

class Nodes {
 public:
  Nodes(const Decoder& decoder, NameEntries& entries, NodeVersions& versions, Taps& taps, Run& run)
      : decoder_(decoder), entries_(entries), versions_(versions), taps_(taps), run_(run), kinds_(decoder) {}

  void forget_codes() { kinds_.forget(); }

  // ---- of ops ----

  // Is there a node for this call, as far as can be told before it has run? If not, Python takes a note of the
  // arguments, which are gone when it has.
  void recognise(Call& call, Arguments arguments) {
    const Step& last = entries_.step(call.position);
    call.is_as_last = last.version != 0 && last.begin == call.begin && last.arguments == call.arguments &&
                      last.version == versions_[last.node];
    if (call.is_as_last) {
      call.known = last.node;
      return;
    }
    NameEntry& entry = entries_[call.entry];
    if (entry.arguments_vary) call.arguments = 0;
    Variant* similar = nullptr;
    for (Variant& each : entry.variants) {
      if (each.begin != call.begin) continue;
      if (each.arguments == call.arguments) {
        call.known = each.node;
        taps_.prefetch(*run_.plan, each.node);
        return;
      }
      similar = &each;
    }
    if (similar == nullptr) {
      for (Variant& each : entry.variants) {
        if (each.site != call.site) continue;
        if (each.arguments == call.arguments) {
          call.known = each.node;
          return;
        }
        similar = &each;
      }
    }
    // An argument that changes a second time (a learning rate) changes in every run: from now on the node says so,
    // instead of being made anew for each value.
    const bool varies = similar != nullptr && ++entry.argument_changes >= 2;
    if (!varies && !entry.arguments_vary) {
      kinds_.note(call, arguments);
      if (call.kind.similar != kNone) return;
    }
    WithPython python;
    Object values(PyTuple_New(Py_ssize_t(arguments.size())));
    for (size_t i = 0; i < arguments.size(); ++i) {
      PyTuple_SET_ITEM(values.get(), Py_ssize_t(i), Object(to_python(arguments[i].boxed())).release());
    }
    if (varies) {
      decoder_.ask("arguments_vary", "iiO", similar->node, call.op->index, values.get());
      entry.arguments_vary = true;
      call.arguments = 0;
      call.known = similar->node;
      keep_only(entry, {similar->begin, 0, similar->end, similar->node, similar->kind, similar->site});
      return;
    }
    decoder_.ask("begin", "iO", call.op->index, values.get());
  }

  // The node of a call that has ended. `end` tells what its outputs are like, see Variant.
  int32_t of(Call& call, Outputs outputs, uint64_t end) {
    if (call.is_as_last && entries_.step(call.position).end == end) return call.known;
    const int32_t node = look_up(call, outputs, end);
    Step& step = entries_.step(call.position);
    const bool settles = entries_[call.entry].varying.empty();
    step.version = settles ? versions_[node] : 0;
    step.node = node;
    step.plan = 0;
    step.begin = call.begin;
    step.arguments = call.arguments;
    step.end = end;
    return node;
  }

  void report_failure(const Call& call) {
    WithPython python;
    Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
    decoder_.ask("failed", "iiiiiOO", call.op->index, call.entry, call.known, call.kind.similar, call.forward, inputs.get(),
                 controls.get());
  }

 private:
  int32_t look_up(Call& call, Outputs outputs, uint64_t end) {
    const uint64_t kind = kind_of(outputs);
    int32_t found = entries_[call.entry].find(call.begin, call.arguments, end);
    if (found == kNone) found = of_any_shape(call.entry, call.begin, call.arguments, outputs, kind);
    if (found == kNone) found = rewired(call, end, kind);
    if (found != kNone) return found;
    // A call that differs in a plain argument only takes the place of the one it resembles, as names do not tell them
    // apart.
    int32_t reused = entries_[call.entry].victim();
    Variant* similar = nullptr;
    for (Variant& each : entries_[call.entry].variants) {
      if (each.begin == call.begin && each.end == end) similar = &each;
    }
    if (similar != nullptr) reused = similar->node;
    const int32_t node = build(call, reused, outputs);
    if (similar != nullptr) {
      similar->arguments = call.arguments;
    } else {
      entries_[call.entry].remember({call.begin, call.arguments, end, node, kind, call.site});
    }
    return node;
  }

  // Dtypes, ranks and devices.
  static uint64_t kind_of(Outputs outputs) {
    uint64_t kind = outputs.size();
    for (const at::Tensor* tensor : outputs) {
      kind = mix(mix(kind, uint64_t(tensor->scalar_type())), uint64_t(rank_of(*tensor)));
      if (is_wrapper(*tensor)) continue;
      kind = mix(kind, uint64_t(tensor->device().type()) << 8 | uint8_t(tensor->device().index()));
    }
    return kind;
  }

  // One variant stands for all from now on. The nodes of the others are not found any more, wherever they were noted.
  void keep_only(NameEntry& entry, Variant kept) {
    for (const Variant& each : entry.variants) {
      if (each.node != kept.node) versions_.changed(each.node);
    }
    entry.remember_only(kept);
  }

 public:
  // ---- of what no op has made ----

  // A tensor that came from nowhere.
  int32_t constant(int32_t entry, const at::Tensor& tensor, uint64_t spec) {
    return of_alike(entry, 1, tensor, spec, [&](PyObject* shown) {
      return decoder_.ask("constant", "iiO", entry, entries_[entry].victim(), shown).number();
    });
  }

  // The gradient of a parameter, complete; the value it is, if that has a name.
  int32_t gradient(int32_t entry, const at::Tensor& tensor, uint64_t spec, Value value, int32_t parameter) {
    return of_alike(entry, mix(uint64_t(value), 7), tensor, spec, [&](PyObject* shown) {
      return decoder_
          .ask("gradient", "iiLOi", entry, entries_[entry].victim(), (long long)value, shown, parameter)
          .number();
    });
  }

  // A view, made where nobody could see it, of memory that does have a name.
  int32_t hidden_view(int32_t entry, const at::Tensor& tensor, uint64_t spec, uint64_t geometry, Value root,
                      int32_t writer) {
    const uint64_t begin = mix(mix(uint64_t(root), uint64_t(writer)), geometry);
    const int32_t found = entries_[entry].find(begin, 0, spec);
    if (found != kNone) return found;
    WithPython python;
    Object shown(THPVariable_Wrap(tensor));
    Object made = decoder_.ask("hidden_view", "iiLiO", entry, entries_[entry].victim(), (long long)root, writer, shown.get());
    run_.made += 1;
    const int32_t node = int32_t(made.number());
    entries_[entry].remember({begin, 0, spec, node});
    return node;
  }

 private:
  // Outputs whose shapes change again and again (sentences of any length): from now on the node says which dimensions
  // do, instead of being made anew for each shape.
  int32_t of_any_shape(int32_t which, uint64_t begin, uint64_t arguments, Outputs outputs, uint64_t kind) {
    constexpr int kChanges = 3;
    NameEntry& entry = entries_[which];
    const Variant* similar = nullptr;
    for (const Variant& each : entry.variants) {
      if (each.begin == begin && each.arguments == arguments && each.kind == kind) similar = &each;
    }
    if (similar == nullptr) return kNone;
    if (entry.varying.empty() && ++entry.shape_changes < kChanges) return kNone;
    WithPython python;
    Object shown(wrapped(outputs));
    Object masks = decoder_.ask("shapes_vary", "iO", similar->node, shown.get());
    Variant kept = *similar;
    entry.varying.clear();
    for (Py_ssize_t i = 0; i < PyTuple_Size(masks.get()); ++i) {
      entry.varying.push_back(uint32_t(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(masks.get(), i))));
    }
    kept.end = outputs.size();
    for (size_t i = 0; i < outputs.size(); ++i) kept.end = mix(kept.end, spec_but(*outputs[i], entry.varying[i]));
    keep_only(entry, kept);
    return kept.node;
  }

  // The node of a constant or a complete gradient: its shapes settle as those of ops do.
  template <class Make>
  int32_t of_alike(int32_t entry, uint64_t begin, const at::Tensor& tensor, uint64_t spec, Make make) {
    const auto& varying = entries_[entry].varying;
    const uint64_t end = mix(1, varying.empty() ? spec : spec_but(tensor, varying[0]));
    const uint64_t kind = mix(mix(1, uint64_t(tensor.scalar_type())), uint64_t(rank_of(tensor)));
    int32_t node = entries_[entry].find(begin, 0, end);
    const at::Tensor* output = &tensor;
    if (node == kNone) node = of_any_shape(entry, begin, 0, Outputs(output), kind);
    if (node != kNone) return node;
    WithPython python;
    Object shown(THPVariable_Wrap(tensor));
    const int64_t made = make(shown.get());
    run_.made += 1;
    node = int32_t(made);
    entries_[entry].remember({begin, 0, end, node, kind});
    return node;
  }

  // The node of a call whose inputs come from elsewhere than before, and which is the same otherwise: loops that grow from
  // run to run are full of them. It is watched as the one it is like.
  int32_t rewired(const Call& call, uint64_t end, uint64_t kind) {
    int32_t like = kNone;
    for (const Variant& each : entries_[call.entry].variants) {
      const bool is_like = each.site == call.site && each.arguments == call.arguments && each.end == end &&
                           each.kind == kind && each.begin != call.begin;
      if (is_like) like = each.node;
    }
    if (like == kNone) return kNone;
    Plan::Node watched = taps_.known_of(*run_.plan, like);
    int32_t node;
    {
      WithPython python;
      Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
      Object made = decoder_.ask("rewired", "iiiOO", call.entry, like, entries_[call.entry].victim(), inputs.get(),
                                 controls.get());
      node = int32_t(made.number());
    }
    versions_.changed(node);
    taps_.set(*run_.plan, node, std::move(watched));
    entries_[call.entry].remember({call.begin, call.arguments, end, node, kind, call.site});
    return node;
  }

  // Python gives a node its number, and its kind one if it is new.
  int32_t build(const Call& call, int32_t reused, Outputs outputs) {
    WithPython python;
    run_.made += 1;
    Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
    const int32_t kind = call.kind.similar == kNone ? kNone : kinds_.find(call, outputs);
    Object shown(kind == kNone ? wrapped(outputs) : Py_NewRef(Py_None));
    Object made =
        call.kind.similar == kNone
            ? decoder_.ask("build", "iiiiiOOO", call.op->index, call.entry, call.known, reused, call.forward,
                           inputs.get(), controls.get(), shown.get())
            : decoder_.ask("build_alike", "iiiiOOO", kind == kNone ? call.kind.similar : kind, call.entry, reused,
                           call.forward, inputs.get(), controls.get(), shown.get());
    const int64_t numbers = made.number();
    if (kind == kNone && call.known == kNone) kinds_.remember(call, outputs, int32_t(numbers >> 32) - 1);
    return int32_t(numbers & INT32_MAX);
  }

  const Decoder& decoder_;
  NameEntries& entries_;
  NodeVersions& versions_;
  Taps& taps_;
  Run& run_;
  Kinds kinds_;
};

}  // namespace tensortap
