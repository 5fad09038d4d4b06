// Sees every operator of a run (fallback.h says how), without touching Python for what it has seen
// before. The meaning of everything here (names, scopes, dataflow, which ops count) is that of recorder.py; what is
// new is decoded by Python once (decoder.py) and recognised afterwards.
//
// Per operator:
//   start   which values are its inputs, in which scope and on which line it runs -> its entry (a name)
//   end     its outputs get their values; entry + inputs + arguments + line + output types -> its node;
//           health pills and copies of watched outputs go to their lanes
//
// Where to find what:
//   operators.h, dispatching.h   which calls count, and what their operators do; arguments.h: what they are called with
//   inputs.h, values.h           which values a call is given; memory_table.h: from which memory
//   scopes.h, forward_ops.h      in which module, backward pass or optimizer it runs; frames.h: on which line
//   name_entries.h, nodes.h      what it is called, and which node it is; sequences.h: where the run before had the same
//   plans.h, recording.h         what is watched of it, and its records; packed.h: how pills wait
//   contents.h                   whether there is something to look at
//   bad_values.h                 what it has made bad
//   known_tensors.h              parameters, buffers and optimizer state, named as in the run before
//   callbacks.h, fallback.h, typed_kernels.h   what PyTorch calls; interface.cpp: what Python calls
#pragma once

#include <exception>
#include <vector>

#include "inputs.h"
#include "known_tensors.h"
#include "threads.h"

namespace tensortap {

struct Labels {
  int32_t constant, as_strided;
};

class Observer {
 public:
  Observer(PyObject* decoder_object, const int8_t* dtype_codes, SummaryKernel summarise, Labels labels)
      : decoder(decoder_object),
        recording(decoder, taps_, run, dtype_codes, summarise),
        inputs_(decoder, entries, nodes_, scopes, contents_, recording, bad, run, labels.constant, labels.as_strided) {}

  SpinLock lock;
  Run run;
  bool is_fallback = false;  // how ops are seen: by fallback.h, or by RecordFunction
  const Decoder decoder;
  NameEntries entries{decoder};
  Scopes scopes{decoder, entries, run};
  Recording recording;
  BadValues bad{decoder, versions_, recording, run};
  KnownTensors known{classes_, scopes, run};

  // ---- a run ----

  void begin_run(Plan* plan, bool seeks_bad) {
    run.begin(plan);
    entries.begin_run(run.id);
    scopes.begin_run();
    contents_.begin_run();
    recording.begin_run();
    bad.begin_run(seeks_bad);
    has_failed_ = false;
  }

  void end_run() {
    contents_.end_run();
    scopes.end_run();
    recording.end_run();
    run.end();
  }

  void add_source(const at::Tensor& tensor, int32_t entry, int32_t node) {
    Origin& origin = run.values.assign(tensor, place_of(tensor), value_of(entry, 0));
    run.values.keep_source(origin, tensor, node);
  }

  // A number stands for another node from now on.
  void node_changed(int32_t node) { versions_.changed(node); }

  void forget_codes() {
    codes_.forget();
    nodes_.forget_codes();
  }

  // ---- the two moments of an op ----

  Operator* operator_of(const at::RecordFunction& fn) { return operators_.of(fn); }
  Operator* operator_of(const c10::OperatorHandle& handle) { return operators_.of(handle); }
  Operator* operator_of(const c10::OperatorHandle& handle, size_t number) { return operators_.of(handle, number); }

  // Sets the thread's opaque depth if the op is looked at as a whole, so that nothing inside of it counts.
  void start(Thread& thread, Operator* op, c10::ArrayRef<const c10::IValue> stack) {
    const bool counts = op != nullptr && !op->transparent;
    start(thread, op, StackArguments(stack, counts ? op->argument_count : 0), false);
  }

  // The arguments may stay where they are until the op is over.
  void start(Thread& thread, Operator* op, Arguments arguments, bool stay) {
    if (thread.run != run.id) {  // the first call of this run on another thread
      thread.run = run.id;
      thread.calls = 1;
    }
    if (has_failed_) {  // and the program went on
      has_failed_ = false;
      decoder.tell("failure_was_caught");
    }
    if (op == nullptr || op->transparent) return;
    Call& call = thread.call;
    call.valid = false;
    const auto local = c10::impl::tls_local_dispatch_key_set();
    if (is_hidden(local)) {
      thread.opaque_depth = thread.depth;
      return;
    }
    const auto keys = keys_of(local, arguments);
    if (descends(*op, keys)) return;
    if (keys.has(c10::DispatchKey::Python) && classes_.show_their_ops(arguments)) {
      scopes.forward_ops.begin_wrapper();
      thread.is_wrapped = true;
      return;
    }
    thread.opaque_depth = thread.depth;
    if (run.is_full()) {
      leave_out();
      return;
    }
    prefetch(arguments);
    const Line line = codes_.first_user_line([this](PyObject* code) { return classify(code); });
    if (line.prints || op->index == kNone) return;
    if (op->is_collective && run.met == 0) run.met = recording.now();
    call.start(op, run.id);
    call.tensors.begin(stay);
    call.number = thread.calls - 1;
    call.uncaught = std::uncaught_exceptions();
    call.is_by_program = thread.observer == this;
    inputs_.read(call, arguments);
    const int32_t scope = scopes.of(call);
    call.position = entries.position();
    call.entry = entries.next(scope, op->label);
    inputs_.name_unnamed(call);
    sign(call, line);
    nodes_.recognise(call, arguments);
    if (call.is_by_program) scopes.forward_ops.attribute(call);
    call.valid = true;
  }

  void end(Thread& thread, c10::ArrayRef<c10::IValue> stack) {
    if (!has_ended_well(thread)) return;
    const size_t returns = thread.call.op->return_count;  // TorchScript shows its whole stack
    outputs_.clear();
    for (const auto& result : stack.slice(stack.size() > returns ? stack.size() - returns : 0)) collect(result);
    finish(thread.call);
  }

  void end(Thread& thread, Outputs returned) {
    if (!has_ended_well(thread)) return;
    outputs_.assign(returned.begin(), returned.end());
    finish(thread.call);
  }

  // ---- gradients of parameters, complete ----

  void record_gradient(PyObject* variable) {
    WithPython python;  // the parameter may be of a class that wants to hear of questions
    const at::Tensor tensor = tensor_of(variable);
    const GradientName* name = scopes.gradient_of(tensor);
    if (name == nullptr) return;
    at::Tensor gradient = tensor.grad();
    if (!gradient.defined()) return;
    if (const at::Tensor seen = classes_.in_place_of(gradient); seen.defined()) {
      gradient = seen;
    } else {
      Object wrapper(THPVariable_Wrap(gradient));
      gradient = tensor_of(decoder.ask("in_place_of", "O", wrapper.get()).get());
    }
    const int32_t entry = entries.next(name->scope, name->label);
    uint64_t spec;
    const Place place = place_of(gradient, &spec);
    Origin* origin = run.values.find(place);
    // What the last ops have done with it is not known in a run that has become too long.
    const Value input = origin == nullptr || run.unrecorded > 0 ? kNoValue : origin->value;
    // A hook may have written to it where nobody sees it.
    const bool is_as_made = input != kNoValue && origin->version == run.values.memory(*origin).version &&
                            torch::autograd::impl::hooks(tensor).empty();
    const int32_t node = nodes_.gradient(entry, gradient, spec, input, name->parameter);
    const Value value = value_of(entry, 0);
    run.values.assign(gradient, place, value);
    run.nodes.push_back(node);
    int64_t began = 0;
    if (run.plan->watches) {
      bad.note(value, recording.emit(node, 0, gradient, false, began, value, is_as_made ? input : kNoValue));
    }
  }

 private:
  // Over the limits, ops are only counted.
  void leave_out() {
    if (run.unrecorded++ == 0) decoder.tell("limit_reached");
  }

  // While the line is looked for, what is known of the tensors comes into the cache.
  void prefetch(Arguments arguments) const {
    any_tensor(arguments, [this](const at::Tensor& tensor) {
      if (tensor.defined()) run.values.prefetch(tensor);
      return false;
    });
  }

  int classify(PyObject* code) { return int(decoder.number("classify", "O", code)); }

  // What tells this call from others of its name: operator, line, forward op, inputs.
  static void sign(Call& call, const Line& line) {
    uint64_t site = mix(uint64_t(call.op->index) + 1, reinterpret_cast<uint64_t>(line.instruction));
    site = mix(site, reinterpret_cast<uint64_t>(line.code));
    site = mix(mix(site, line.callers), call.inputs.size());
    call.site = call.begin = mix(site, uint64_t(call.forward));
    for (Value value : call.inputs) call.begin = mix(call.begin, uint64_t(value));
    for (int32_t writer : call.controls) call.begin = mix(call.begin, uint64_t(writer) + (uint64_t(1) << 40));
  }

  bool has_ended_well(Thread& thread) {
    Call& call = thread.call;
    if (!call.valid) return false;
    call.valid = false;
    if (call.run != run.id) {  // it began in a run that is over, whose operators may be gone
      call.let_go();
      return false;
    }
    if (thread.observer == this) scopes.forward_ops.attribute(call);
    if (std::uncaught_exceptions() <= call.uncaught) return true;
    call.let_go();
    has_failed_ = true;
    nodes_.report_failure(call);
    return false;
  }

  // With the tensors that it has returned as outputs.
  void finish(Call& call) {
    if (!call.kept.empty()) add_kept(call);
    const int32_t node = name_outputs(call);
    if (run.traced) note_execution(call.number);
    run.nodes.push_back(node);
    if (run.plan->watches) record_outputs(call, node);
    call.let_go();
  }

  // Those that it has only written.
  void add_kept(const Call& call) {
    const size_t returned = outputs_.size();
    for (const auto& tensor : call.kept) {
      bool is_returned = false;
      for (size_t i = 0; i < returned && !is_returned; ++i) is_returned = outputs_[i]->is_same(tensor);
      if (!is_returned) outputs_.push_back(&tensor);
    }
  }

  void collect(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) outputs_.push_back(&value.toTensor());
    } else if (value.isList() || value.isTuple()) {
      const auto items = value.isList() ? value.toListRef() : c10::ArrayRef<c10::IValue>(value.toTupleRef().elements());
      for (const auto& item : items) collect(item);
    }
  }

  // Makes the outputs known by their places; the node they are of.
  int32_t name_outputs(Call& call) {
    static const c10::SmallVector<uint32_t, 1> kNoneVaries;
    const auto& varying = call.is_as_last ? kNoneVaries : entries[call.entry].varying;
    uint64_t end = outputs_.size();
    for (size_t slot = 0; slot < outputs_.size(); ++slot) {
      const at::Tensor& tensor = *outputs_[slot];
      uint64_t spec;
      const Place place = place_of(tensor, &spec);
      end = mix(end, slot < varying.size() ? spec_but(tensor, varying[slot]) : spec);
      if (call.has_written(tensor)) {
        if (Memory* memory = run.values.memory_at(place)) {
          memory->version += 1;
          memory->writer = call.entry;
        }
      } else if (call.op->is_view) {
        Origin* named = run.values.find(place);
        if (named != nullptr && named->version == run.values.memory(*named).version) continue;
      }
      const Value value = value_of(call.entry, slot);
      run.values.assign(tensor, place, value);
      if (call.owner != 0) scopes.own(value, call.owner);
    }
    return nodes_.of(call, outputs_, end);
  }

  void note_execution(int64_t call) {
    const int64_t position = int64_t(run.nodes.size()), thread = int64_t(at::RecordFunction::currentThreadId());
    if (outputs_.empty()) run.executions.push_back({position, thread, call, -1, 0});
    for (size_t slot = 0; slot < outputs_.size(); ++slot) {
      const at::Tensor& tensor = *outputs_[slot];
      const void* address = has_plain_storage(tensor) ? memory_of(tensor) : nullptr;
      run.executions.push_back({position, thread, call, int64_t(slot), reinterpret_cast<int64_t>(address)});
    }
  }

  void record_outputs(const Call& call, int32_t node) {
    const bool fresh = !call.op->is_view && call.written.empty();
    const int inherited = bad.kinds_of_inputs(call);
    int64_t began = 0;  // to be recorded: since the last record, the op may have waited for other ranks
    int kinds = 0;
    for (size_t slot = 0; slot < outputs_.size(); ++slot) {
      const at::Tensor& tensor = *outputs_[slot];
      const Value value = value_of(call.entry, slot);
      const bool is_there = contents_.settle(call, node, slot, tensor);
      const int found =
          is_there ? recording.emit(taps_of(call, node, slot), node, slot, tensor, fresh, began, value) : kNotSummarised;
      if (found > 0) kinds |= found;
      bad.note(value, found == kNotSummarised ? inherited : found);
    }
    // The first bad value, or the first NaN that comes of infinities.
    if (kinds != 0) kinds = inherited == 0 ? kinds : kinds & KIND_NAN & ~inherited;
    if (kinds != 0) bad.show(&call, node, outputs_, kinds, began);
  }

  // Those of the first output are noted where the node is found, if there is no more than one.
  c10::ArrayRef<Tap> taps_of(const Call& call, int32_t node, size_t slot) {
    if (slot != 0) return taps_.of(*run.plan, node, slot);
    Step& step = entries.step(call.position);
    const bool is_noted = step.node == node && step.version == versions_[node];
    if (is_noted && step.plan == run.plan->number) return step.has_tap() ? c10::ArrayRef<Tap>(step.tap) : c10::ArrayRef<Tap>();
    const auto taps = taps_.of(*run.plan, node, slot);
    if (is_noted && taps.size() <= 1) {
      step.plan = run.plan->number;
      step.tap = taps.empty() ? Step::kNoTap : taps[0];
    }
    return taps;
  }

  Operators operators_{decoder};
  TensorClasses classes_{decoder};
  Codes codes_;
  NodeVersions versions_;
  Taps taps_{decoder, versions_};
  Nodes nodes_{decoder, entries, versions_, taps_, run};
  Contents contents_{run.values};
  Inputs inputs_;
  std::vector<const at::Tensor*> outputs_;  // of the op that ends
  bool has_failed_ = false;  // the last op
};

}  // namespace tensortap
