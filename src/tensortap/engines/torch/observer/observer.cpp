// Sees every operator of a run through PyTorch's own RecordFunction, without touching Python for what it has seen
// before. The meaning of everything here (names, scopes, dataflow, which ops count) is that of recorder.py; what is
// new is decoded by Python once (decoder.py) and recognised afterwards.
//
// Per operator:
//   start   which values are its inputs, in which scope and on which line it runs -> its entry (a name)
//   end     its outputs get their values; entry + inputs + arguments + line + output types -> its node;
//           health pills and copies of watched outputs go to their lanes
//
// Only plain C symbols are exported; see library.py for their use.

#include "python.h"

#include <ATen/SequenceNumber.h>
#include <ATen/TracerMode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <pthread.h>
#include <time.h>

#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "finite.h"
#include "frames.h"
#include "known.h"
#include "lanes.h"
#include "parallel.h"
#include "refilled.h"
#include "values.h"
#include "wrappers.h"

namespace tensortap {
namespace {

constexpr int kMaxVariants = 8;
constexpr size_t kCopied = size_t(1) << 20;  // bytes of records that are copied rather than given away with their block
constexpr int64_t kMaxAgeMicroseconds = 50'000;  // a program that hangs has shown all but the last moment
constexpr size_t kMostSurvivors = 10'000;  // bad values that are remembered from run to run
constexpr int32_t kNone = -1;
constexpr uint64_t kNoSequence = UINT64_MAX;  // of nodes that belong to a parameter

std::atomic<uint64_t> next_run{1};  // runs are told apart also when their observers are gone
std::atomic<uint64_t> process_generation{1};  // changes in a forked child, which is not the process being observed

// ---- what is known of operators, names and nodes; lives as long as the session ----

struct Operator {
  std::string name, overload;
  int32_t index = kNone;
  int32_t label = kNone;
  bool transparent = false;
  bool is_view = false;
  bool has_composite = false;
  bool is_communication = false;
  bool keeps_written = false;  // some of what it writes is not among its results
  bool leaves_garbage = false;  // its output is memory as it was found
  bool is_collective = false, is_wait = false;
  int training_argument = kNone;  // it writes only if this argument is true
  std::vector<uint8_t> written;   // by argument
  std::optional<c10::OperatorHandle> handle;
  bool is_built_in = false;
  size_t argument_count = 0, return_count = 0;
  uint64_t last_keys = 0;
  bool last_descends = false;
};

// One appearance of a node: the same inputs, arguments, line and output types.
struct Variant {
  uint64_t begin, arguments, end;
  int32_t node;
  uint64_t kind = 0;  // of its outputs: dtypes, ranks and devices
  uint64_t site = 0;  // operator, line and forward node: all but the inputs of `begin`
};

struct Entry {
  int32_t family = kNone;
  uint32_t number = 0;  // in its family
  c10::SmallVector<Variant, 1> variants;
  int32_t gradient_scope = kNone, inner_scope = kNone;
  uint8_t next_victim = 0, argument_changes = 0, shape_changes = 0;
  bool arguments_vary = false;
  c10::SmallVector<uint32_t, 1> varying;  // for each output, which of its dimensions vary, as bits
};

// All entries of one label in one scope, in the order of a run.
struct Family {
  uint64_t key = 0;  // scope and label
  uint64_t run = 0;
  uint32_t count = 0;
  std::vector<int32_t> entries;
};

struct Tap {
  int32_t lane;
  uint32_t key;
};
constexpr int32_t kPythonLane = -1;

// What is watched, resolved once for each node.
struct Plan {
  struct Node {
    uint32_t version = 0;
    uint32_t slots = 0;  // outputs that are resolved, from the first on
    c10::SmallVector<c10::SmallVector<Tap, 1>, 1> taps;  // empty while none of them is watched
  };
  std::vector<Node> nodes;
  bool watches = false;
};

// Kinds of bad values are those of pill.h.
constexpr int kNotSummarised = -1;

struct Parameter {
  int32_t index, scope, label, leaf_scope;
};

// Where ops run that are in no module; written by Python as optimizers come and go.
struct Scope {
  int32_t scope = 0;
  int32_t in_optimizer = 0;
};

struct Module {
  int32_t scope;
  bool recomputed;  // called by the backward pass
};

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Pending {
  Operator* op = nullptr;
  uint64_t run = 0;
  int32_t entry = kNone, forward = kNone, owner = 0;
  uint64_t site = 0, begin = 0, arguments = 0;  // as in Variant
  int32_t known = kNone;  // a node that differs at most in its output types, and in where its inputs come from
  int uncaught = 0;
  int64_t number = 0;  // of the call, see Thread
  bool valid = false;
  c10::SmallVector<Value, 8> inputs;
  c10::SmallVector<WeakTensor, 4> tensors;  // the inputs, if bad values are looked for
  c10::SmallVector<int32_t, 2> controls;
  c10::SmallVector<c10::TensorImpl*, 2> written;
  std::vector<at::Tensor> kept;
};

// One output of an executed op: what it takes to find the op, and its memory, in the record of PyTorch's profiler.
struct Execution {
  int64_t position;  // of the node in the run
  int64_t thread, call;
  int64_t slot;  // -1 for an op without outputs
  int64_t address;
};

// Beyond which a run is not recorded; see limits.py.
struct Limits {
  size_t nodes = SIZE_MAX, made = SIZE_MAX, outside = SIZE_MAX;
};

// A bad value that has outlived the run that made it. The weak pointer keeps its address from being used again.
struct Survivor {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t run;
  Value value;
};

// A tensor that came bad from outside, and the run and value it is from.
struct Arrival {
  Value value;
  int64_t run;
  Value origin;
};

struct Run {
  uint64_t id = 0, generation = 0;
  int64_t index = -1;  // its number in its session, -1 if it has none
  std::vector<int32_t> nodes;
  Limits limits;
  size_t made = 0;  // nodes that had to be built
  bool in_modules = false;  // one has been called
  bool has_unsettled = false;  // some memory is, or was, garbage or arriving
  int64_t unrecorded = 0;  // ops over the limits
  std::vector<Execution> executions;
  bool traced = false;
  Values values;
  std::vector<int32_t> forward_of;  // by sequence number, from first_sequence
  uint64_t first_sequence = 0, next_sequence = 0;
  bool in_wrapper = false;  // an op on a wrapper has begun, and none inside that computes
  ska::flat_hash_map<Value, int32_t> owners;
  std::vector<Lane> lanes;
  Plan* plan = nullptr;
  int64_t timestamp = 0, oldest = 0;
  size_t position = 0;  // names given so far
  bool seeks_bad = false;
  int64_t began = 0;  // a time before the records of the last op
  ska::flat_hash_map<Value, int> bad;
  std::vector<Arrival> arrivals;
  std::vector<Value> gone;  // bad values whose memory is free
};

// Held for a microsecond at a time, and hardly ever by two threads: only who flushes the records of a run that hangs, and
// the threads of autograd, come from outside the thread of the run.
class SpinLock {
 public:
  bool try_lock() {
    const uint64_t generation = process_generation.load(std::memory_order_relaxed);
    uint64_t holder = kFree;
    if (taken_.compare_exchange_strong(holder, generation, std::memory_order_acquire)) return true;
    // In a forked child, the thread that held it in the parent does not exist.
    return holder != generation && taken_.compare_exchange_strong(holder, generation, std::memory_order_acquire);
  }
  void unlock() { taken_.store(kFree, std::memory_order_release); }

  // Waits without the GIL, which the thread that holds the lock may need to go on.
  void lock() {
    if (try_lock()) return;
    PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    while (!try_lock()) std::this_thread::yield();
    if (released != nullptr) PyEval_RestoreThread(released);
  }

 private:
  static constexpr uint64_t kFree = 0;
  std::atomic<uint64_t> taken_{kFree};  // the process that holds it, by its generation
};

class Observer;

// The state of a thread that executes ops of an observed run.
struct Thread {
  Observer* observer = nullptr;
  uint64_t run = 0;
  int depth = 0;
  int opaque_depth = 0;  // depth of the op whose inside is not looked at, 0 for none
  bool busy = false;     // ops of our own
  int64_t calls = 0;     // RecordFunctions of this run so far, our own ones included: the profiler sees the same
  const void* starting = nullptr;  // the last of them; a run inside a run has two callbacks, which both see it
  Pending pending;
};

// Of the initial-exec kind, which is read without a function call.
__attribute__((tls_model("initial-exec"))) thread_local Thread* thread_state = nullptr;
std::atomic<Observer*> only_observer{nullptr};  // while exactly one thread observes
std::atomic<int> observers_active{0};

Thread& this_thread() {
  if (thread_state == nullptr) thread_state = new Thread;  // kept: threads of torch live as long as the process
  return *thread_state;
}

int64_t microseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
}

bool is_wrapper_key(c10::DispatchKey key) {
  using K = c10::DispatchKey;
  switch (key) {
    case K::FuncTorchDynamicLayerFrontMode:
    case K::FuncTorchDynamicLayerBackMode:
    case K::FuncTorchGradWrapper:
    case K::FuncTorchBatched:
    case K::BatchedNestedTensor:
    case K::Batched:
    case K::Functionalize: return true;
    default: return false;
  }
}

// Ops of our own are no part of an autograd graph, and no mode of the user sees them.
struct Unnoticed {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_modes{c10::python_ks};
};

// torch.jit.trace writes down every op of the thread, and would ours; see tracing.py.
bool is_being_traced() { return at::tracer::impl::is_dispatch_enabled(); }

bool is_optional_wrapper_key(c10::DispatchKey key) {
  using K = c10::DispatchKey;
  return key == K::FuncTorchVmapMode || key == K::VmapMode || c10::autocast_dispatch_keyset.has(key);
}

class Observer {
 public:
  Observer(PyObject* decoder, const int8_t* dtype_codes, SummaryKernel summarise)
      : decoder_(decoder), summarise_(summarise) {
    std::memcpy(dtype_codes_, dtype_codes, sizeof dtype_codes_);
  }

  Scope scope;
  PyObject* optimizer_frame = nullptr;  // a frame object that Python keeps while the optimizer steps
  const Frame* optimizer_place = nullptr;
  std::vector<Module> modules;  // being executed
  Run run;
  SpinLock lock;

  // ---- the two moments of an op ----

  void start(Thread& thread, const at::RecordFunction& fn) {
    if (thread.run != run.id) {  // the first call of this run on another thread
      thread.run = run.id;
      thread.calls = 1;
    }
    if (failed_last_) {  // and the program went on
      failed_last_ = false;
      WithPython python;
      Object(PyObject_CallMethod(decoder_, "failure_was_caught", nullptr));
    }
    Operator* op = operator_of(fn);
    if (op == nullptr || op->transparent) return;
    // A call from TorchScript brings the whole stack; the arguments are at its end.
    auto arguments = fn.inputs();
    if (arguments.size() > op->argument_count) arguments = arguments.slice(arguments.size() - op->argument_count);
    Pending& call = thread.pending;
    call.valid = false;
    const auto local = c10::impl::tls_local_dispatch_key_set();
    if (is_hidden(local)) {
      thread.opaque_depth = thread.depth;
      return;
    }
    const auto keys = keys_of(local, arguments);
    if (descends(*op, keys)) return;
    if (keys.has(c10::DispatchKey::Python) && shows_its_ops(arguments)) {
      // Its autograd node is that of the first op inside that computes: what is communicated before are its inputs.
      if (at::sequence_number::peek() > run.next_sequence) run.in_wrapper = true;
      return;
    }
    thread.opaque_depth = thread.depth;
    if (is_full()) {
      leave_out();
      return;
    }
    const Line line = codes_.first_user_line([this](PyObject* code) { return classify(code); });
    if (line.prints) return;
    call.op = op;
    call.run = run.id;
    call.number = thread.calls - 1;
    call.uncaught = std::uncaught_exceptions();
    call.known = call.forward = kNone;
    call.owner = 0;
    call.inputs.clear();
    call.tensors.clear();
    call.controls.clear();
    call.written.clear();
    call.kept.clear();
    if (op->index == kNone) return;

    unseen_.clear();
    uint64_t hash = 0;
    const bool writes = !op->written.empty() &&
                        (op->training_argument < 0 || (size_t(op->training_argument) < arguments.size() &&
                                                       arguments[op->training_argument].isBool() &&
                                                       arguments[op->training_argument].toBool()));
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool written = writes && i < op->written.size() && op->written[i];
      hash = read_argument(call, arguments[i], hash, written);
    }
    const int32_t where = scope_of(call);
    call.entry = next(where, op->label);
    for (auto& [position, tensor] : unseen_) call.inputs[position] = name_unseen(call, tensor);
    unseen_.clear();

    uint64_t site = mix(uint64_t(op->index) + 1, reinterpret_cast<uint64_t>(line.instruction));
    site = mix(site, reinterpret_cast<uint64_t>(line.code));
    site = mix(mix(site, line.callers), call.inputs.size());
    call.site = call.begin = mix(site, uint64_t(call.forward));
    for (Value value : call.inputs) call.begin = mix(call.begin, uint64_t(value));
    for (int32_t writer : call.controls) call.begin = mix(call.begin, uint64_t(writer) + (uint64_t(1) << 40));
    call.arguments = hash;
    recognise(call, arguments);

    if (thread.observer == this) attribute_sequence_numbers(call);
    call.valid = true;
  }

  void end(Thread& thread, const at::RecordFunction& fn) {
    Pending& call = thread.pending;
    if (!call.valid) return;
    call.valid = false;
    if (call.run != run.id) {  // it began in a run that is over, whose operators may be gone
      call.kept.clear();
      call.tensors.clear();
      return;
    }
    if (thread.observer == this) attribute_sequence_numbers(call);
    if (std::uncaught_exceptions() > call.uncaught) {
      call.kept.clear();
      call.tensors.clear();
      report_failure(call);
      return;
    }
    Operator& op = *call.op;
    outputs_.clear();
    const auto& results = fn.outputs();
    for (size_t i = results.size() > op.return_count ? results.size() - op.return_count : 0; i < results.size(); ++i) {
      collect(results[i]);
    }
    const size_t returned = outputs_.size();
    for (const auto& tensor : call.kept) {
      bool known = false;
      for (size_t i = 0; i < returned && !known; ++i) known = outputs_[i]->is_same(tensor);
      if (!known) outputs_.push_back(&tensor);
    }
    uint64_t kind = outputs_.size(), end = kind;
    for (size_t slot = 0; slot < outputs_.size(); ++slot) {
      const at::Tensor& tensor = *outputs_[slot];
      uint64_t spec;
      const Place place = place_of(tensor, &spec);
      const auto& varying = entries_[call.entry].varying;
      end = mix(end, slot < varying.size() ? spec_but(tensor, varying[slot]) : spec);
      kind = mix(mix(kind, uint64_t(tensor.scalar_type())), uint64_t(rank_of(tensor)));
      if (!is_wrapper(tensor)) kind = mix(kind, uint64_t(tensor.device().type()) << 8 | uint8_t(tensor.device().index()));
      const Value value = value_of(call.entry, int64_t(slot));
      if (is_written(call, tensor)) {
        if (Memory* memory = run.values.memory_at(place)) {
          memory->version += 1;
          memory->writer = call.entry;
        }
      } else if (op.is_view) {
        Origin* known = run.values.find(place);
        if (known != nullptr && known->version == run.values.memory(*known).version) continue;
      }
      run.values.assign(tensor, place, value);
      if (call.owner != 0) run.owners[value] = call.owner;
    }
    const int32_t node = node_of(call, end, kind);
    if (run.traced) note_execution(call.number);
    run.nodes.push_back(node);
    if (run.plan->watches) {
      const bool fresh = !op.is_view && call.written.empty();
      const int inherited = kinds_of_inputs(call);
      int kinds = 0;
      if (run.seeks_bad) run.began = now();
      for (size_t slot = 0; slot < outputs_.size(); ++slot) {
        const int found = settle(call, node, slot) ? emit(node, slot, *outputs_[slot], fresh) : kNotSummarised;
        if (found > 0) kinds |= found;
        note_bad(value_of(call.entry, int64_t(slot)), found == kNotSummarised ? inherited : found);
      }
      // The first bad value, or the first NaN that comes of infinities.
      if (kinds != 0) kinds = inherited == 0 ? kinds : kinds & KIND_NAN & ~inherited;
      if (kinds != 0) show_bad(&call, node, kinds);
    }
    call.kept.clear();
    call.tensors.clear();
  }

  // ---- gradients of parameters, complete ----

  void record_gradient(PyObject* variable) {
    WithPython python;  // the parameter may be of a class that wants to hear of questions
    const at::Tensor tensor = tensor_of(variable);
    auto found = parameters_.find(tensor.unsafeGetTensorImpl());
    if (found == parameters_.end()) return;
    at::Tensor gradient = tensor.grad();
    if (!gradient.defined()) return;
    if (const at::Tensor seen = tensor_classes_.in_place_of(gradient, decoder_); seen.defined()) {
      gradient = seen;
    } else {
      Object wrapper(THPVariable_Wrap(gradient));
      gradient = tensor_of(Object(PyObject_CallMethod(decoder_, "in_place_of", "O", wrapper.get())).get());
    }
    const Parameter& parameter = found->second;
    const int32_t entry = next(parameter.scope, parameter.label);
    uint64_t spec;
    const Place place = place_of(gradient, &spec);
    Origin* origin = run.values.find(place);
    // What the last ops have done with it is not known in a run that has become too long.
    const Value input = origin == nullptr || run.unrecorded > 0 ? kNoValue : origin->value;
    const uint64_t begin = mix(uint64_t(input), 7);
    const Alike alike = find_alike(entry, begin, gradient, spec);
    int32_t node = alike.node;
    if (node == kNone) {
      WithPython python;
      Object tensor(THPVariable_Wrap(gradient));
      Object made(PyObject_CallMethod(decoder_, "gradient", "iiLOi", entry, victim(entry), (long long)input,
                                      tensor.get(), parameter.index));
      run.made += 1;
      node = int32_t(made.number());
      remember(entry, {begin, 0, alike.end, node, alike.kind});
    }
    run.values.assign(gradient, place, value_of(entry, 0));
    run.nodes.push_back(node);
    if (run.plan->watches) note_bad(value_of(entry, 0), emit(node, 0, gradient, false));
  }

  // ---- modules, announced by PyTorch's global hooks ----

  void enter_module(PyObject* module, PyObject* arguments) {
    const bool recomputed = (!modules.empty() && modules.back().recomputed) || torch::autograd::get_current_node();
    const int32_t parent = modules.empty() ? 0 : modules.back().scope;
    run.in_modules = true;
    auto found = module_scopes_.find(module);
    int32_t where;
    if (found != module_scopes_.end()) {
      where = found->second;
    } else {
      where = int32_t(Object(PyObject_CallMethod(decoder_, "unknown_module", "Oi", module, parent)).number());
    }
    if (recomputed) {
      where = int32_t(Object(PyObject_CallMethod(decoder_, "recomputed_scope", "i", where)).number());
    } else if (modules.empty() && has_unnamed(arguments)) {
      Object(PyObject_CallMethod(decoder_, "enter_root", "iOO", where, module, arguments));
    }
    modules.push_back({where, recomputed});
  }

  void add_module(const void* module, int32_t where) { module_scopes_[module] = where; }

  // ---- called by Python between ops ----

  int32_t next(int32_t where, int32_t label) {
    const uint64_t key = (uint64_t(uint32_t(where)) << 32) | uint32_t(label);
    // Most often it is the one that followed in the last run too, and close to the last one in memory.
    const size_t position = run.position;
    if (position < sequence_.size()) {
      const Entry& expected = entries_[sequence_[position]];
      Family& family = families_[expected.family];
      const uint32_t count = family.run == run.id ? family.count : 0;
      if (family.key == key && expected.number == count) {
        family.run = run.id;
        family.count = count + 1;
        run.position = position + 1;
        return sequence_[position];
      }
    }
    const int32_t entry = look_up(key, where, label);  // may throw, and then this position is still free
    if (position >= sequence_.size()) sequence_.resize(position + 1, entry);
    sequence_[position] = entry;
    run.position = position + 1;
    return entry;
  }

  int32_t reserve_entry() {
    entries_.emplace_back();
    return int32_t(entries_.size()) - 1;
  }

  void add_source(const at::Tensor& tensor, int32_t entry, int32_t node) {
    Origin& origin = run.values.assign(tensor, place_of(tensor), value_of(entry, 0));
    run.values.keep_source(origin, tensor, node);
  }

  void add_parameter(const c10::TensorImpl* impl, Parameter parameter) { parameters_[impl] = parameter; }

  // ---- tensors that were there in the run before ----

  void forget_known() {
    known_modules_.forget();
    known_states_.clear();
    parameters_.clear();
    module_scopes_.clear();
  }

  // Parameters: (tensor, entry, node, entry of its gradient, node). Buffers: (tensor, entry, node).
  void remember_known(PyObject* roots, PyObject* parameters, PyObject* buffers) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
      PyObject* object;
      Named value, gradient;
      parse(PyList_GET_ITEM(parameters, i), "Oiiii", &object, &value.entry, &value.node, &gradient.entry, &gradient.node);
      const at::Tensor tensor = tensor_of(object);
      note_spec(value, tensor);
      // Those of a program whose models take turns come and go; what they were like is known from when they were there.
      uint64_t& spec = gradient_specs_[gradient.entry];
      if (tensor.grad().defined()) {
        note_spec(gradient, tensor.grad());
        spec = gradient.spec;
      }
      gradient.spec = spec;
      known_modules_.parameters.push_back(
          {object, tensor.unsafeGetTensorImpl(), value, gradient, is_trained(tensor), hooks_of(tensor)});
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buffers); ++i) {
      KnownBuffer buffer;
      parse(PyList_GET_ITEM(buffers, i), "Oii", &buffer.object, &buffer.value.entry, &buffer.value.node);
      note_spec(buffer.value, tensor_of(buffer.object));
      known_modules_.buffers.push_back(buffer);
    }
    known_modules_.remember(roots);
  }

  // Names parameters, their gradients and buffers as in the run before; false if something is different. Hooks that have
  // stayed on the parameters have to be there still.
  bool name_known(PyObject* roots, bool has_hooks) {
    if (!known_modules_.is_unchanged(roots)) return false;
    for (const KnownParameter& each : known_modules_.parameters) {
      const at::Tensor tensor = tensor_of(each.object);
      if (tensor.unsafeGetTensorImpl() != each.impl || is_trained(tensor) != each.is_trained ||
          (has_hooks && hooks_of(tensor) != each.hooks) || !name_again(tensor, each.value)) {
        return false;
      }
      const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
      if (gradient.defined() && !name_again(gradient, each.gradient)) return false;
    }
    for (const KnownBuffer& each : known_modules_.buffers) {
      if (!name_again(tensor_of(each.object), each.value)) return false;
    }
    return true;
  }

  // Parameters: (tensor, number of the owner, entry, node). States: (parameter, owner, [(key, is it a tensor, entry, node)]).
  void remember_state(PyObject* optimizer, int32_t where, PyObject* parameters, PyObject* states) {
    constexpr size_t kMostOptimizers = 64;
    if (known_states_.size() >= kMostOptimizers) known_states_.clear();
    KnownState& known = known_states_[{optimizer, where}] = KnownState{};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
      KnownState::Parameter each;
      parse(PyList_GET_ITEM(parameters, i), "Oiii", &each.object, &each.owner, &each.value.entry, &each.value.node);
      note_spec(each.value, tensor_of(each.object));
      known.parameters.push_back(each);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(states); ++i) {
      KnownState::State state;
      PyObject* items;
      parse(PyList_GET_ITEM(states, i), "OiO", &state.parameter, &state.owner, &items);
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(items); ++j) {
        KnownState::Item item{};
        int known_as_tensor;
        parse(PyList_GET_ITEM(items, j), "OOpii", &item.key, &item.object, &known_as_tensor, &item.value.entry,
              &item.value.node);
        item.is_tensor = known_as_tensor;
        item.type = Py_TYPE(item.object);
        if (item.is_tensor) note_spec(item.value, tensor_of(item.object));
        state.items.push_back(item);
      }
      known.states.push_back(std::move(state));
    }
  }

  // Names the state of an optimizer that begins to step as in its step before, and says what has to do with which parameter.
  bool name_state(PyObject* optimizer, int32_t where) {
    auto found = known_states_.find({optimizer, where});
    if (found == known_states_.end() || !found->second.is_unchanged(optimizer)) return false;
    for (const auto& each : found->second.parameters) {
      const at::Tensor tensor = tensor_of(each.object);
      if (each.value.entry >= 0 && !name_again(tensor, each.value)) return false;
      own(tensor, each.owner);
      if (tensor.grad().defined()) own(tensor.grad(), each.owner);
    }
    for (const auto& state : found->second.states) {
      for (const auto& item : state.items) {
        if (!item.is_tensor) continue;
        const at::Tensor tensor = tensor_of(item.object);
        if (find_seen(tensor) == kNoValue && !name_again(tensor, item.value)) return false;
        own(tensor, state.owner);
      }
    }
    return true;
  }

  Value find(const at::Tensor& tensor) {
    Origin* origin = run.values.find(place_of(tensor));
    return origin == nullptr ? kNoValue : origin->value;
  }

  void begin_run(Plan* plan, int keep_bad) {
    run.id = next_run.fetch_add(1);
    run.seeks_bad = keep_bad > 0;
    run.bad.clear();
    run.generation = process_generation.load();
    run.plan = plan;
    run.nodes.clear();
    run.limits = Limits{};
    run.made = 0;
    run.in_modules = run.has_unsettled = false;
    run.unrecorded = 0;
    run.executions.clear();
    run.arrivals.clear();
    run.gone.clear();
    run.index = -1;
    run.traced = false;
    run.values.clear();
    run.owners.clear();
    run.forward_of.clear();
    run.first_sequence = run.next_sequence = at::sequence_number::peek();
    run.in_wrapper = false;
    run.timestamp = run.oldest = 0;
    run.position = 0;
    scope = Scope{};
    modules.clear();
    optimizer_frame = nullptr;
    failed_last_ = false;
  }

  void end_run() {
    freed_storages_.note(run.values);
    run.values.clear();
    run.owners.clear();
    modules.clear();
    for (Lane& lane : run.lanes) lane.discard();
    run.lanes.clear();
    run.plan = nullptr;
  }

  // What becomes of the bad values of a run that is over: their memory is free, or they may be used in a later run.
  void see_off_bad() {
    run.gone.clear();
    for (auto it = survivors_.begin(); it != survivors_.end();) {
      const bool forget = it->second.storage.expired() || run.values.was_written(it->first);
      it = forget ? survivors_.erase(it) : std::next(it);
    }
    if (run.bad.empty()) return;
    run.values.each_storage([this](Value value, const void* address, const Memory&,
                                   const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
      if (run.bad.find(value) == run.bad.end()) return;
      if (storage.expired()) {
        run.gone.push_back(value);
      } else if (survivors_.size() < kMostSurvivors) {
        survivors_.emplace(address, Survivor{storage, run.index, value});
      }
    });
  }

  std::vector<Value> survivors() const {
    std::vector<Value> values;
    for (const auto& each : survivors_) values.push_back(each.second.value);
    return values;
  }

  // Takes over what has survived runs of another observer; values, in the order of `survivors`, are as they are called here.
  void inherit(Observer& other, const std::vector<Value>& values) {
    size_t next = 0;
    for (auto& each : other.survivors_) {
      if (next == values.size()) break;
      Survivor survivor = std::move(each.second);
      survivor.value = values[next++];
      survivors_.emplace(each.first, std::move(survivor));
    }
    other.survivors_.clear();
  }

  void node_changed(int32_t node) {
    if (size_t(node) >= node_versions_.size()) node_versions_.resize(size_t(node) + 64, 0);
    node_versions_[node] += 1;
    if (size_t(node) < shown_bad_.size()) shown_bad_[node] = 0;
  }

  void flush() {
    for (size_t i = 0; i < run.lanes.size(); ++i) flush_lane(i);
    run.oldest = 0;
  }

  void forget_codes() { codes_.forget(); }

  int64_t now() {
    const int64_t time = microseconds();
    if (time > run.timestamp) run.timestamp = time;
    return run.timestamp;
  }

  void fault(const char* where, const char* what) noexcept {
    try {
      WithPython python;
      PyObject* result = PyObject_CallMethod(decoder_, "fault", "ss", where, what);
      if (result == nullptr) PyErr_Clear();
      Py_XDECREF(result);
    } catch (...) {
    }
  }

 private:
  // ---- runs that are too long ----

  bool is_full() const {
    const Limits& most = run.limits;
    return run.unrecorded > 0 || run.nodes.size() >= most.nodes || run.made >= most.made ||
           (!run.in_modules && run.nodes.size() >= most.outside);
  }

  void leave_out() {
    if (run.unrecorded++ > 0) return;
    WithPython python;
    Object(PyObject_CallMethod(decoder_, "limit_reached", nullptr));
  }

  // Whether one of the tensors that a module is given may have no name yet.
  bool has_unnamed(PyObject* arguments) {
    if (!PyTuple_Check(arguments)) return true;
    WithPython python;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
      PyObject* argument = PyTuple_GET_ITEM(arguments, i);
      if (!is_tensor(argument)) continue;
      if (!is_ordinary_tensor(argument)) return true;
      const at::Tensor tensor = tensor_of(argument);
      if (is_wrapper(tensor) || find(tensor) == kNoValue) return true;
    }
    return false;
  }

  // ---- tensors that were there in the run before ----

  template <class... Places>
  static void parse(PyObject* tuple, const char* format, Places... places) {
    if (!PyArg_ParseTuple(tuple, format, places...)) throw std::runtime_error(current_error());
  }

  static bool is_trained(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

  // One that was never trained, such as a frozen parameter, is unknown to autograd.
  static const void* hooks_of(const at::Tensor& tensor) {
    if (torch::autograd::impl::get_autograd_meta(tensor) == nullptr) return nullptr;
    return torch::autograd::impl::post_acc_grad_hooks(tensor).get();
  }

  void note_spec(Named& named, const at::Tensor& tensor) {
    const at::Tensor seen = tensor_classes_.in_place_of(tensor, decoder_);
    if (seen.defined()) place_of(seen, &named.spec);
  }

  bool name_again(const at::Tensor& named_tensor, const Named& named) {
    const at::Tensor tensor = tensor_classes_.in_place_of(named_tensor, decoder_);
    if (!tensor.defined()) return false;  // what it is known by is for Python to say
    uint64_t spec;
    const Place place = place_of(tensor, &spec);
    if (named.entry < 0 || spec != named.spec) return false;
    Origin& origin = run.values.assign(tensor, place, value_of(named.entry, 0));
    run.values.keep_source(origin, tensor, named.node);
    return true;
  }

  void own(const at::Tensor& tensor, int32_t owner) {
    const Value value = find_seen(tensor);
    if (value != kNoValue) run.owners[value] = owner;
  }

  // The value of a tensor, or of what it wraps.
  Value find_seen(const at::Tensor& tensor) {
    const at::Tensor seen = tensor_classes_.in_place_of(tensor, decoder_);
    return seen.defined() ? find(seen) : kNoValue;
  }

  int32_t look_up(uint64_t key, int32_t where, int32_t label) {
    auto found = family_numbers_.find(key);
    if (found == family_numbers_.end()) {
      found = family_numbers_.emplace(key, int32_t(families_.size())).first;
      families_.emplace_back();
      families_.back().key = key;
    }
    const int32_t which = found->second;
    Family& family = families_[which];
    if (family.run != run.id) {
      family.run = run.id;
      family.count = 0;
    }
    const uint32_t number = family.count;
    if (number == family.entries.size()) {
      {
        WithPython python;
        Object(PyObject_CallMethod(decoder_, "new_entry", "iiiI", int(entries_.size()), where, label, number));
      }
      families_[which].entries.push_back(int32_t(entries_.size()));
      entries_.emplace_back();
      entries_.back().family = which;
      entries_.back().number = number;
    }
    families_[which].count = number + 1;
    return families_[which].entries[number];
  }

  // ---- operators ----

  Operator* operator_of(const at::RecordFunction& fn) {
    const char* name = fn.name();  // of a schema, so each overload has its own
    // Names can be freed and their address given to another operator, except those of PyTorch itself.
    const auto recent = built_in_.find(name);
    if (recent != built_in_.end()) return recent->second;
    const auto full_name = fn.operator_name();
    const std::string overload = full_name.has_value() ? full_name->overload_name : "";
    auto& known = operators_[std::string(name) + "." + overload];
    if (known == nullptr) known = new_operator(name, overload);
    if (known->is_built_in) built_in_[name] = known.get();
    return known.get();
  }

  std::unique_ptr<Operator> new_operator(const std::string& name, const std::string& overload) {
    auto op = std::make_unique<Operator>();
    op->name = name;
    op->overload = overload;
    op->transparent = true;
    if (name.find("::") != std::string::npos) {
      op->handle = c10::Dispatcher::singleton().findSchema({name, overload});
    }
    if (op->handle.has_value()) {
      op->is_built_in = name.compare(0, 6, "aten::") == 0;
      op->has_composite = op->handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
      const size_t arguments = op->argument_count = op->handle->schema().arguments().size();
      op->return_count = op->handle->schema().returns().size();
      WithPython python;
      Object found(PyObject_CallMethod(decoder_, "new_operator", "ss", name.c_str(), overload.c_str()));
      int transparent, is_view, is_communication, keeps_written;
      PyObject* written;
      int leaves_garbage, is_collective, is_wait;
      if (!PyArg_ParseTuple(found.get(), "iipppipOppp", &op->index, &op->label, &transparent, &is_view, &is_communication,
                            &op->training_argument, &keeps_written, &written, &leaves_garbage, &is_collective,
                            &is_wait)) {
        throw std::runtime_error(current_error());
      }
      op->transparent = transparent;
      op->is_view = is_view;
      op->is_communication = is_communication;
      op->keeps_written = keeps_written;
      op->leaves_garbage = leaves_garbage;
      op->is_collective = is_collective;
      op->is_wait = is_wait;
      if (PyTuple_Size(written) > 0) op->written.resize(arguments);
      for (Py_ssize_t i = 0; i < PyTuple_Size(written); ++i) {
        op->written[PyLong_AsSize_t(PyTuple_GET_ITEM(written, i))] = 1;
      }
    }
    return op;
  }

  static c10::DispatchKeySet keys_of(const c10::impl::LocalDispatchKeySet& local,
                                     c10::ArrayRef<const c10::IValue> arguments) {
    c10::DispatchKeySet keys;
    for (const auto& value : arguments) {
      if (value.isTensor()) {
        keys = keys | value.toTensor().key_set();
      } else if (value.isList()) {
        for (const auto& item : value.toListRef()) {
          if (!item.isTensor()) break;
          keys = keys | item.toTensor().key_set();
        }
      }
    }
    return (keys | local.included_) - local.excluded_;
  }

  // Whether an op only calls others, which are looked at instead: a composite one, or a wrapper such as autocast's.
  static bool descends(Operator& op, c10::DispatchKeySet keys) {
    if (op.last_keys == keys.raw_repr() && op.last_keys != 0) return op.last_descends;
    op.last_keys = keys.raw_repr();
    return op.last_descends = descends_for(op, keys);
  }

  // Whether an op is seen as those that a wrapper among its arguments executes on what it wraps.
  bool shows_its_ops(c10::ArrayRef<const c10::IValue> arguments) {
    for (const auto& value : arguments) {
      if (value.isTensor() && shows_its_ops(value.toTensor())) return true;
      if (!value.isList()) continue;
      for (const auto& item : value.toListRef()) {
        if (!item.isTensor()) break;
        if (shows_its_ops(item.toTensor())) return true;
      }
    }
    return false;
  }

  bool shows_its_ops(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has(c10::DispatchKey::Python) || memory_of(tensor) != nullptr) return false;
    return tensor_classes_.of(tensor, decoder_).shows_its_ops;
  }

  // What the dispatcher would do, from the highest key down to the first that has a say.
  static bool descends_for(const Operator& op, c10::DispatchKeySet keys) {
    const auto& handle = *op.handle;
    bool has_own_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    for (const auto key : keys) {
      if (is_wrapper_key(key)) return true;  // wherever it stands, it calls the op again with what it wraps
      const bool has_backend = c10::toBackendComponent(key) != c10::BackendComponent::InvalidBit;
      if (has_backend && handle.hasKernelForDispatchKey(key)) has_own_kernel = true;
    }
    while (!keys.empty()) {
      const auto key = keys.highestPriorityTypeId();
      if (key == c10::DispatchKey::Undefined) break;
      keys = keys.remove(key);
      if (is_optional_wrapper_key(key)) {
        if (handle.hasKernelForDispatchKey(key) && !handle.isKernelFallthroughKernel(key)) return true;
        continue;
      }
      if (key == c10::DispatchKey::Python) return false;
      if (c10::toBackendComponent(key) != c10::BackendComponent::InvalidBit) break;
    }
    if (!has_own_kernel) has_own_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    return op.has_composite && !has_own_kernel;
  }

  // Whether ops are no part of the program: `torch.tensor` fills its result this way, and compilers try out shapes.
  // Whatever looks at a tensor while PyTorch traces a function becomes part of the trace.
  static bool is_hidden(const c10::impl::LocalDispatchKeySet& local) {
    using c10::impl::TorchDispatchModeKey;
    using c10::impl::TorchDispatchModeTLS;
    if (local.excluded_.has(c10::DispatchKey::Python) || is_being_traced()) return true;
    return TorchDispatchModeTLS::any_modes_set() && (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE) ||
                                                     TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY));
  }

  // ---- inputs ----

  // Takes note of the tensors in an argument and hashes everything else about it.
  uint64_t read_argument(Pending& call, const c10::IValue& value, uint64_t hash, bool written) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
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
    if (value.isNone()) return mix(hash, 3);
    if (value.isInt()) return mix(mix(hash, 5), uint64_t(value.toInt()));
    if (value.isBool()) return mix(hash, value.toBool() ? 6 : 7);
    if (value.isDouble()) {
      const double number = value.toDouble();
      uint64_t bits;
      std::memcpy(&bits, &number, sizeof bits);
      return mix(mix(hash, 8), bits);
    }
    if (value.isList()) {
      const auto items = value.toListRef();
      hash = mix(mix(hash, 9), items.size());
      for (const auto& item : items) hash = read_argument(call, item, hash, written);
      return hash;
    }
    if (value.isString()) return mix(hash, std::hash<std::string>()(value.toStringRef()));
    if (value.isDevice()) return mix(mix(hash, uint64_t(value.toDevice().type())), uint64_t(value.toDevice().index()));
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      return mix(mix(hash, std::hash<double>()(number.real())), std::hash<double>()(number.imag()));
    }
    return mix(hash, 10);
  }

  void read_tensor(Pending& call, const at::Tensor& tensor, bool written) {
    // Weak, so that nothing is kept from being freed or reused.
    if (run.seeks_bad) call.tensors.emplace_back(tensor.getIntrusivePtr());
    const Place place = place_of(tensor);
    Origin* origin = run.values.find(place);
    if (origin == nullptr && scope.in_optimizer) {
      WithPython python;
      if (Object(PyObject_CallMethod(decoder_, "find_new_state", nullptr)).number() != 0) {
        origin = run.values.find(place);
      }
    }
    if (origin == nullptr) {
      unseen_.emplace_back(call.inputs.size(), tensor);
      call.inputs.push_back(kNoValue);
      return;
    }
    if (origin->source >= 0) {
      use_source(*origin, tensor);
      origin = run.values.find(place);
    }
    Memory& memory = run.values.memory(*origin);
    // The threads of a collective write it with ops of their own; what the program computes with it has arrived.
    if ((memory.content == Content::kArriving || memory.content == Content::kRefilled) && !written && thread_state != nullptr && thread_state->observer == this &&
        !call.op->is_view && !call.op->is_collective && !call.op->is_wait) {
      memory.content = Content::kThere;
      if (origin->value == memory.arriving && run.plan->watches) {
        const int32_t slot = int32_t(origin->value & ((Value(1) << kSlotBits) - 1));
        note_bad(origin->value, emit(memory.arriving_node, size_t(slot), tensor, false));
      }
    }
    if (origin->version != memory.version && memory.writer != kNone) add_control(call, memory.writer);
    call.inputs.push_back(origin->value);
  }

  static void add_control(Pending& call, int32_t writer) {
    for (int32_t known : call.controls) {
      if (known == writer) return;
    }
    call.controls.push_back(writer);
  }

  // Makes a tensor from outside, used for the first time, a node of the run.
  void use_source(Origin& origin, const at::Tensor& tensor) {
    const int32_t node = run.values.sources[origin.source].node;
    const Value value = origin.value;
    origin.source = -1;
    run.nodes.push_back(node);
    if (run.plan->watches) emit_source(node, value, tensor);
  }

  // Names a tensor that came from nowhere, after the op that uses it first.
  Value name_unseen(const Pending& call, const at::Tensor& tensor) {
    const int32_t consumer = call.entry;
    uint64_t spec;
    const Place place = place_of(tensor, &spec);
    if (Origin* found = run.values.find(place)) return found->value;  // the same op takes it twice
    if (entries_[consumer].inner_scope == kNone) {
      WithPython python;
      const int64_t inner = Object(PyObject_CallMethod(decoder_, "inner_scope", "i", consumer)).number();
      entries_[consumer].inner_scope = int32_t(inner);
    }
    const int32_t inner = entries_[consumer].inner_scope;
    Memory* memory = run.values.memory_at(place);
    Origin* root = memory == nullptr ? nullptr : run.values.find(memory->root);
    const bool is_view = root != nullptr && memory->root_dtype == tensor.scalar_type() && memory->plain &&
                         has_plain_storage(tensor);
    if (!is_view) {
      const int32_t entry = next(inner, const_label);
      const Alike alike = find_alike(entry, 1, tensor, spec);
      int32_t node = alike.node;
      if (node == kNone) {
        WithPython python;
        Object wrapped(THPVariable_Wrap(tensor));
        Object made(PyObject_CallMethod(decoder_, "constant", "iiO", entry, victim(entry), wrapped.get()));
        run.made += 1;
        node = int32_t(made.number());
        remember(entry, {1, 0, alike.end, node, alike.kind});
      }
      Origin& origin = run.values.assign(tensor, place, value_of(entry, 0));
      run.nodes.push_back(node);
      const bool is_computed_with = !call.op->is_view && !is_written(call, tensor);
      if (!is_computed_with && freed_storages_.has(tensor) && covers(tensor)) {
        await_refill(run.values.memory(origin), node, value_of(entry, 0));
      } else if (run.plan->watches) {
        emit_source(node, value_of(entry, 0), tensor);
      }
      return value_of(entry, 0);
    }
    // A view, made where nobody could see it, of memory that does have a name.
    const Value root_value = root->value;
    const int32_t writer = memory->writer;
    if (root->source >= 0) {
      const Source source = run.values.sources[root->source];
      Unnoticed unnoticed;
      use_source(*root, tensor.as_strided(source.sizes, source.strides, source.offset));
    }
    const int32_t entry = next(inner, as_strided_label);
    const uint64_t begin = mix(mix(uint64_t(root_value), uint64_t(writer)), place.geometry);
    int32_t node = find_variant(entry, begin, 0, spec);
    if (node == kNone) {
      WithPython python;
      Object wrapped(THPVariable_Wrap(tensor));
      Object made(PyObject_CallMethod(decoder_, "hidden_view", "iiLiO", entry, victim(entry), (long long)root_value,
                                      writer, wrapped.get()));
      run.made += 1;
      node = int32_t(made.number());
      remember(entry, {begin, 0, spec, node});
    }
    run.values.assign(tensor, place, value_of(entry, 0));
    run.nodes.push_back(node);
    if (run.plan->watches) note_bad(value_of(entry, 0), emit(node, 0, tensor, false));
    return value_of(entry, 0);
  }

  void await_refill(Memory& memory, int32_t node, Value value) {
    run.has_unsettled = true;
    memory.content = Content::kRefilled;
    memory.written_bytes = 0;
    memory.arriving_node = node;
    memory.arriving = value;
  }

  // ---- scopes and attribution ----

  int32_t scope_of(Pending& call) {
    auto running = torch::autograd::get_current_node();
    const bool in_module = !modules.empty();
    if (running && !(in_module && modules.back().recomputed)) {
      const uint64_t sequence = running->sequence_nr();
      if (sequence >= run.first_sequence && sequence - run.first_sequence < run.forward_of.size()) {
        const int32_t forward = run.forward_of[sequence - run.first_sequence];
        if (forward != kNone) {
          call.forward = forward;
          if (entries_[forward].gradient_scope == kNone) {
            WithPython python;
            const int64_t made = Object(PyObject_CallMethod(decoder_, "gradient_scope", "i", forward)).number();
            entries_[forward].gradient_scope = int32_t(made);
          }
          return entries_[forward].gradient_scope;
        }
      }
      auto* accumulate = sequence == kNoSequence ? dynamic_cast<torch::autograd::AccumulateGrad*>(running.get()) : nullptr;
      if (accumulate != nullptr) {
        auto found = parameters_.find(accumulate->variable.unsafeGetTensorImpl());
        if (found != parameters_.end()) return found->second.leaf_scope;
        WithPython python;
        return int32_t(Object(PyObject_CallMethod(decoder_, "leaf_scope", "L", (long long)find(accumulate->variable)))
                           .number());
      }
      return stray_scope(running->name());  // its forward op ran before this run
    }
    if (in_module) return modules.back().scope;
    if (scope.in_optimizer) {
      // A frame that has been left is moved into its object.
      if (optimizer_frame != nullptr && frame_of(optimizer_frame) != optimizer_place) {
        WithPython python;
        Object(PyObject_CallMethod(decoder_, "optimizer_left", nullptr));
      }
      if (scope.in_optimizer) {
        int32_t owner = 0;
        for (Value value : call.inputs) {
          auto found = run.owners.find(value);
          if (found == run.owners.end()) continue;
          if (owner != 0 && owner != found->second) return scope.scope;
          owner = found->second;
        }
        if (owner != 0) {
          call.owner = owner;
          return owner_scope(owner);
        }
      }
    }
    return scope.scope;
  }

  int32_t owner_scope(int32_t owner) {
    const uint64_t key = (uint64_t(uint32_t(scope.scope)) << 32) | uint32_t(owner);
    auto found = owner_scopes_.find(key);
    if (found != owner_scopes_.end()) return found->second;
    WithPython python;
    const int64_t made = Object(PyObject_CallMethod(decoder_, "owner_scope", "ii", scope.scope, owner)).number();
    return owner_scopes_[key] = int32_t(made);
  }

  int32_t stray_scope(const std::string& name) {
    auto found = stray_scopes_.find(name);
    if (found != stray_scopes_.end()) return found->second;
    WithPython python;
    const int64_t made = Object(PyObject_CallMethod(decoder_, "stray_scope", "s", name.c_str())).number();
    return stray_scopes_[name] = int32_t(made);
  }

  // Autograd nodes made since the last op, or by this one, belong to this one.
  void attribute_sequence_numbers(const Pending& call) {
    const uint64_t following = at::sequence_number::peek();
    if (following <= run.next_sequence || (run.in_wrapper && call.op->is_communication)) return;
    run.forward_of.resize(following - run.first_sequence, call.entry);
    run.next_sequence = following;
    run.in_wrapper = false;
  }

  int classify(PyObject* code) {
    WithPython python;
    return int(Object(PyObject_CallMethod(decoder_, "classify", "O", code)).number());
  }

  // ---- nodes ----

  int32_t find_variant(int32_t entry, uint64_t begin, uint64_t arguments, uint64_t end) const {
    for (const Variant& each : entries_[entry].variants) {
      if (each.begin == begin && each.arguments == arguments && each.end == end) return each.node;
    }
    return kNone;
  }

  // The number of a node that will not be needed any more, or -1 for a new one.
  int32_t victim(int32_t entry) const {
    const Entry& known = entries_[entry];
    return known.variants.size() < kMaxVariants ? kNone : known.variants[known.next_victim].node;
  }

  void remember(int32_t entry, Variant variant) {
    Entry& known = entries_[entry];
    if (known.variants.size() < kMaxVariants) {
      known.variants.push_back(variant);
    } else {
      known.variants[known.next_victim] = variant;
      known.next_victim = uint8_t((known.next_victim + 1) % kMaxVariants);
    }
  }

  // Is there a node for this call, as far as can be told before it has run? If not, Python takes a note of the
  // arguments, which are gone when it has.
  void recognise(Pending& call, c10::ArrayRef<const c10::IValue> arguments) {
    Entry& entry = entries_[call.entry];
    if (entry.arguments_vary) call.arguments = 0;
    Variant* similar = nullptr;
    for (Variant& each : entry.variants) {
      if (each.begin != call.begin) continue;
      if (each.arguments == call.arguments) {
        call.known = each.node;
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
    WithPython python;
    Object values(PyTuple_New(Py_ssize_t(arguments.size())));
    for (size_t i = 0; i < arguments.size(); ++i) {
      PyTuple_SET_ITEM(values.get(), Py_ssize_t(i), Object(to_python(arguments[i])).release());
    }
    if (varies) {
      Object(PyObject_CallMethod(decoder_, "arguments_vary", "iiO", similar->node, call.op->index, values.get()));
      entry.arguments_vary = true;
      call.arguments = 0;
      const Variant kept{similar->begin, 0, similar->end, similar->node, similar->kind, similar->site};
      entry.variants.clear();
      entry.variants.push_back(kept);
      entry.next_victim = 0;
      call.known = kept.node;
      return;
    }
    Object(PyObject_CallMethod(decoder_, "begin", "iO", call.op->index, values.get()));
  }

  // What an output is like, apart from dimensions that vary.
  static uint64_t spec_but(const at::Tensor& tensor, uint32_t varying) {
    uint64_t hash = mix(uint64_t(tensor.scalar_type()) + 1, uint64_t(rank_of(tensor)));
    if (!has_plain_storage(tensor)) return hash;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (i >= 32 || (varying >> i & 1) == 0) hash = mix(hash, uint64_t(tensor.size(i)));
    }
    return hash;
  }

  // Outputs whose shapes change again and again (sentences of any length): from now on the node says which dimensions
  // do, instead of being made anew for each shape.
  int32_t node_of_any_shape(int32_t which, uint64_t begin, uint64_t arguments, uint64_t kind) {
    constexpr int kChanges = 3;
    Entry& entry = entries_[which];
    const Variant* similar = nullptr;
    for (const Variant& each : entry.variants) {
      if (each.begin == begin && each.arguments == arguments && each.kind == kind) similar = &each;
    }
    if (similar == nullptr) return kNone;
    if (entry.varying.empty() && ++entry.shape_changes < kChanges) return kNone;
    WithPython python;
    Object outputs(wrapped_outputs());
    Object masks(PyObject_CallMethod(decoder_, "shapes_vary", "iO", similar->node, outputs.get()));
    Variant kept = *similar;
    entry.varying.clear();
    for (Py_ssize_t i = 0; i < PyTuple_Size(masks.get()); ++i) {
      entry.varying.push_back(uint32_t(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(masks.get(), i))));
    }
    kept.end = outputs_.size();
    for (size_t i = 0; i < outputs_.size(); ++i) kept.end = mix(kept.end, spec_but(*outputs_[i], entry.varying[i]));
    entry.variants.clear();
    entry.variants.push_back(kept);
    entry.next_victim = 0;
    return kept.node;
  }

  struct Alike {
    int32_t node;
    uint64_t end, kind;
  };

  // The node of what no op has made, a constant or a complete gradient, if there is one: its shapes settle as those of ops do.
  Alike find_alike(int32_t which, uint64_t begin, const at::Tensor& tensor, uint64_t spec) {
    const auto& varying = entries_[which].varying;
    const uint64_t end = mix(1, varying.empty() ? spec : spec_but(tensor, varying[0]));
    const uint64_t kind = mix(mix(1, uint64_t(tensor.scalar_type())), uint64_t(rank_of(tensor)));
    int32_t node = find_variant(which, begin, 0, end);
    if (node == kNone) {
      outputs_.assign(1, &tensor);
      node = node_of_any_shape(which, begin, 0, kind);
    }
    return {node, end, kind};
  }

  PyObject* wrapped_outputs() {
    Object outputs(PyTuple_New(Py_ssize_t(outputs_.size())));
    for (size_t i = 0; i < outputs_.size(); ++i) {
      PyTuple_SET_ITEM(outputs.get(), Py_ssize_t(i), Object(THPVariable_Wrap(*outputs_[i])).release());
    }
    return outputs.release();
  }

  int32_t node_of(Pending& call, uint64_t end, uint64_t kind) {
    int32_t found = find_variant(call.entry, call.begin, call.arguments, end);
    if (found == kNone) found = node_of_any_shape(call.entry, call.begin, call.arguments, kind);
    if (found == kNone) found = rewired_node(call, end, kind);
    if (found != kNone) return found;
    // A call that differs in a plain argument only takes the place of the one it resembles, as names do not tell them
    // apart.
    int32_t reused = victim(call.entry);
    Variant* similar = nullptr;
    for (Variant& each : entries_[call.entry].variants) {
      if (each.begin == call.begin && each.end == end) similar = &each;
    }
    if (similar != nullptr) reused = similar->node;
    WithPython python;
    Object outputs(wrapped_outputs());
    const int32_t node = build(call, reused, outputs.get());
    if (similar != nullptr) {
      similar->arguments = call.arguments;
    } else {
      remember(call.entry, {call.begin, call.arguments, end, node, kind, call.site});
    }
    return node;
  }

  // The node of a call whose inputs come from elsewhere than before, and which is the same otherwise: loops that grow from
  // run to run are full of them. It is watched as the one it is like.
  int32_t rewired_node(const Pending& call, uint64_t end, uint64_t kind) {
    int32_t like = kNone;
    for (const Variant& each : entries_[call.entry].variants) {
      const bool is_like = each.site == call.site && each.arguments == call.arguments && each.end == end &&
                           each.kind == kind && each.begin != call.begin;
      if (is_like) like = each.node;
    }
    if (like == kNone) return kNone;
    Plan& plan = *run.plan;
    const bool is_resolved = size_t(like) < plan.nodes.size() && size_t(like) < node_versions_.size() &&
                             plan.nodes[like].version == node_versions_[like] + 1;
    Plan::Node taps = is_resolved ? plan.nodes[like] : Plan::Node{};
    int32_t node;
    {
      WithPython python;
      Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
      Object made(PyObject_CallMethod(decoder_, "rewired", "iiiOO", call.entry, like, victim(call.entry), inputs.get(),
                                      controls.get()));
      node = int32_t(made.number());
    }
    node_changed(node);
    if (is_resolved) {
      if (size_t(node) >= plan.nodes.size()) plan.nodes.resize(size_t(node) + 256);
      taps.version = node_versions_[node] + 1;
      plan.nodes[node] = std::move(taps);
    }
    remember(call.entry, {call.begin, call.arguments, end, node, kind, call.site});
    return node;
  }

  int32_t build(Pending& call, int32_t reused, PyObject* outputs) {
    run.made += 1;
    Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
    Object made(PyObject_CallMethod(decoder_, "build", "iiiiiOOO", call.op->index, call.entry, call.known, reused,
                                    call.forward, inputs.get(), controls.get(), outputs));
    return int32_t(made.number());
  }

  void report_failure(Pending& call) {
    failed_last_ = true;
    WithPython python;
    Object inputs(number_tuple(call.inputs)), controls(number_tuple(call.controls));
    Object(PyObject_CallMethod(decoder_, "failed", "iiiiOO", call.op->index, call.entry, call.known, call.forward,
                               inputs.get(), controls.get()));
  }

  // ---- outputs ----

  void note_execution(int64_t call) {
    const int64_t position = int64_t(run.nodes.size()), thread = int64_t(at::RecordFunction::currentThreadId());
    if (outputs_.empty()) run.executions.push_back({position, thread, call, -1, 0});
    for (size_t slot = 0; slot < outputs_.size(); ++slot) {
      const at::Tensor& tensor = *outputs_[slot];
      const void* address = has_plain_storage(tensor) ? memory_of(tensor) : nullptr;
      run.executions.push_back({position, thread, call, int64_t(slot), reinterpret_cast<int64_t>(address)});
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

  static bool is_written(const Pending& call, const at::Tensor& tensor) {
    for (const auto* impl : call.written) {
      if (impl == tensor.unsafeGetTensorImpl()) return true;
    }
    return false;
  }

  // Notes what an op has done to the memory of an output; whether there is something in it to be looked at.
  bool settle(const Pending& call, int32_t node, size_t slot) {
    const Operator& op = *call.op;
    if (op.leaves_garbage || op.is_collective) run.has_unsettled = true;
    if (!run.has_unsettled) return true;
    const at::Tensor& tensor = *outputs_[slot];
    Memory* memory = run.values.memory_at(place_of(tensor));
    if (memory == nullptr) return true;
    const bool written = is_written(call, tensor);
    if (op.is_collective) {
      memory->content = Content::kArriving;
      memory->arriving_node = node;
      memory->arriving = value_of(call.entry, int64_t(slot));
    } else if (op.is_wait) {
      memory->content = Content::kThere;
    } else if (op.leaves_garbage && !written) {
      memory->content = Content::kGarbage;
      memory->written_bytes = 0;
    } else if (written && memory->plain &&
               (memory->content == Content::kGarbage || memory->content == Content::kRefilled)) {
      memory->written_bytes += tensor.numel() * int64_t(tensor.element_size());
      if (memory->written_bytes >= int64_t(tensor.storage().nbytes())) memory->content = Content::kThere;
      return true;
    }
    return memory->content == Content::kThere;
  }

  c10::ArrayRef<Tap> taps_of(int32_t node, size_t slot) {
    Plan& plan = *run.plan;
    if (size_t(node) >= plan.nodes.size()) plan.nodes.resize(size_t(node) + 256);
    if (size_t(node) >= node_versions_.size()) node_versions_.resize(size_t(node) + 256, 0);
    Plan::Node& known = plan.nodes[node];
    if (known.version != node_versions_[node] + 1) {
      known = Plan::Node{};
      known.version = node_versions_[node] + 1;
    }
    while (known.slots <= slot) resolve(known, node, known.slots++);
    return slot < known.taps.size() ? c10::ArrayRef<Tap>(known.taps[slot]) : c10::ArrayRef<Tap>();
  }

  void resolve(Plan::Node& known, int32_t node, size_t slot) {
    WithPython python;
    Object taps(PyObject_CallMethod(decoder_, "taps", "in", node, Py_ssize_t(slot)));
    if (PyTuple_Size(taps.get()) == 0) return;
    known.taps.resize(slot + 1);
    for (Py_ssize_t i = 0; i + 1 < PyTuple_Size(taps.get()); i += 2) {
      known.taps[slot].push_back({int32_t(PyLong_AsLong(PyTuple_GET_ITEM(taps.get(), i))),
                                  uint32_t(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(taps.get(), i + 1)))});
    }
  }

  // Records an output; says which kinds of bad values it has, if its summary was made.
  int emit(int32_t node, size_t slot, const at::Tensor& tensor, bool fresh) {
    const auto taps = taps_of(node, slot);
    if (taps.empty()) return kNotSummarised;
    if (!fresh && is_freed(tensor)) {
      WithPython python;
      Object(PyObject_CallMethod(decoder_, "without_data", "in", node, Py_ssize_t(slot)));
      return kNotSummarised;
    }
    bool native = is_plain(tensor) && tensor.dim() <= kMaxRank - 1;
    const int code = int(tensor.scalar_type()) < 64 ? dtype_codes_[int(tensor.scalar_type())] : kNone;
    for (const Tap& tap : taps) {
      if (tap.lane == kPythonLane || (run.lanes[tap.lane].kind == Lane::kSummary && (code < 0 || !summarise_))) {
        native = false;
      }
    }
    if (!native) {
      flush();  // records leave in the order of time
      WithPython python;
      Object wrapped(THPVariable_Wrap(tensor));
      Object(PyObject_CallMethod(decoder_, "tap", "inO", node, Py_ssize_t(slot), wrapped.get()));
      return kNotSummarised;
    }
    const int64_t time = now();
    int kinds = kNotSummarised;
    for (const Tap& tap : taps) {
      Lane& lane = run.lanes[tap.lane];
      if (lane.kind == Lane::kSummary) {
        kinds = add_summary(size_t(tap.lane), tap.key, code, tensor, time);
      } else {
        add_copy(size_t(tap.lane), tap.key, tensor, time);
      }
    }
    if (run.oldest == 0) {
      run.oldest = time;
      WithPython python;
      Object(PyObject_CallMethod(decoder_, "flush_later", nullptr));
    } else if (time - run.oldest > kMaxAgeMicroseconds) {
      flush();
    }
    return kinds;
  }

  void emit_source(int32_t node, Value value, const at::Tensor& tensor) {
    const int kinds = emit(node, 0, tensor, false);
    note_bad(value, kinds);
    if (kinds > 0) {
      note_arrival(value, tensor);
      outputs_.assign(1, &tensor);
      show_bad(nullptr, node, kinds);
    }
  }

  // ---- bad values ----

  void note_bad(Value value, int kinds) {
    if (kinds > 0) run.bad[value] = kinds;
  }

  void note_arrival(Value value, const at::Tensor& tensor) {
    if (survivors_.empty() || !has_plain_storage(tensor)) return;
    auto found = survivors_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != survivors_.end()) run.arrivals.push_back({value, found->second.run, found->second.value});
  }

  int kinds_of_inputs(const Pending& call) const {
    int kinds = 0;
    if (run.bad.empty()) return kinds;
    for (Value value : call.inputs) {
      auto found = run.bad.find(value);
      if (found != run.bad.end()) kinds |= found->second;
    }
    return kinds;
  }

  // Shows a node that has just made a bad value of good ones, with its outputs and what is left of its inputs.
  void show_bad(Pending* call, int32_t node, int kinds) {
    if (!run.seeks_bad) return;
    if (size_t(node) >= shown_bad_.size()) shown_bad_.resize(size_t(node) + 64, 0);
    if ((kinds & ~shown_bad_[node]) == 0) return;
    shown_bad_[node] |= uint8_t(kinds);
    WithPython python;
    // Asked by name: a node is a number of ours, and a program of varying shapes has many numbers for one name.
    Object wanted(PyObject_CallMethod(decoder_, "wants_bad", "ii", node, kinds));
    if (wanted.get() != Py_True) return;
    flush();  // records leave in the order of time
    Object outputs(wrapped_outputs());
    const size_t count = call == nullptr ? 0 : std::min(call->inputs.size(), call->tensors.size());
    Object values(PyTuple_New(Py_ssize_t(count))), inputs(PyTuple_New(Py_ssize_t(count)));
    for (size_t i = 0; i < count; ++i) {
      at::Tensor tensor(call->tensors[i].lock());
      const bool is_there = tensor.defined() && !is_written(*call, tensor) && !is_freed(tensor);
      PyObject* shown = is_there ? Object(THPVariable_Wrap(tensor)).release() : Py_NewRef(Py_None);
      PyTuple_SET_ITEM(inputs.get(), Py_ssize_t(i), shown);
      PyTuple_SET_ITEM(values.get(), Py_ssize_t(i), PyLong_FromLongLong(call->inputs[i]));
    }
    Object(PyObject_CallMethod(decoder_, "made_bad", "iOOOL", node, outputs.get(), values.get(), inputs.get(),
                               (long long)run.began));
  }

  int add_summary(size_t number, uint32_t key, int code, const at::Tensor& tensor, int64_t time) {
    Lane& lane = run.lanes[number];
    const size_t rank = size_t(tensor.dim());
    const size_t nbytes = (PILL_SIZE + rank) * sizeof(double);
    double row[PILL_SIZE + kMaxRank];
    const void* values = tensor.const_data_ptr();
    if (tensor.is_contiguous() && summarise_in_parallel(summarise_, values, code, tensor.numel(), tensor.element_size(),
                                                        lane.lower, lane.upper, row)) {
      row[PILL_RANK] = double(rank);
      for (size_t i = 0; i < rank; ++i) row[PILL_SIZE + i] = double(tensor.size(int64_t(i)));
    } else {
      summarise_(values, code, int(rank), tensor.sizes().data(), tensor.strides().data(), lane.lower, lane.upper, row);
    }
    const int kinds = pill_kinds(row);
    if (lane.mute_if_healthy && pill_is_healthy(row)) {
      lane.muted += 1;
      return kinds;
    }
    char* data = room_for(number, nbytes);
    std::memcpy(data, row, nbytes);
    lane.has_bad |= kinds != 0;
    const int64_t dims[] = {int64_t(PILL_SIZE + rank)};
    finish_row(lane, key, time, nbytes, 1, dims);
    return kinds;
  }

  void add_copy(size_t number, uint32_t key, const at::Tensor& tensor, int64_t time) {
    const size_t nbytes = size_t(tensor.numel()) * tensor.element_size();
    char* data = room_for(number, nbytes);
    if (nbytes != 0) {
      if (tensor.is_contiguous()) {
        std::memcpy(data, tensor.const_data_ptr(), nbytes);
      } else {
        Unnoticed unnoticed;
        const at::Tensor dense = tensor.contiguous();
        std::memcpy(data, dense.const_data_ptr(), nbytes);
      }
    }
    finish_row(run.lanes[number], key, time, nbytes, size_t(tensor.dim()), tensor.sizes().data());
  }

  char* room_for(size_t number, size_t nbytes) {
    Lane& lane = run.lanes[number];
    // Values can be mapped from the file, so they lie at multiples of 64; pills are read from the index.
    const size_t alignment = lane.kind == Lane::kCopy ? 64 : 8;
    const size_t aligned = (lane.used + alignment - 1) & ~(alignment - 1);
    if (lane.has_room(aligned, nbytes)) {
      std::memset(lane.data + lane.used, 0, aligned - lane.used);  // it is written too, and the block has been used
      lane.used = aligned;
      return lane.data + aligned;
    }
    flush_lane(number);
    lane.discard();  // what is left of it is empty
    if (!lane.make_room(nbytes)) throw std::bad_alloc();
    return lane.data + lane.used;
  }

  static void finish_row(Lane& lane, uint32_t key, int64_t time, size_t nbytes, size_t rank, const int64_t* dims) {
    Row& row = lane.rows[lane.count++];
    row = {key, uint32_t(rank), time, int64_t(lane.used), int64_t(nbytes), {}};
    std::memcpy(row.dims, dims, rank * sizeof(int64_t));
    lane.used += nbytes;
  }

  void flush_lane(size_t number) {
    Lane& lane = run.lanes[number];
    if (lane.count == 0 && lane.muted == 0) return;
    WithPython python;
    if (lane.used < kCopied) {  // a copy, so that a few records do not keep a large block
      Object rows(PyBytes_FromStringAndSize(reinterpret_cast<char*>(lane.rows), Py_ssize_t(lane.count * sizeof(Row))));
      Object data(PyBytes_FromStringAndSize(lane.data, Py_ssize_t(lane.used)));
      const int64_t muted = lane.muted;
      PyObject* has_bad = lane.has_bad ? Py_True : Py_False;
      lane.start_again();
      lane.muted = 0;
      Object(PyObject_CallMethod(decoder_, "take", "iOOLO", int(number), rows.get(), data.get(), (long long)muted, has_bad));
      return;
    }
    Row* rows = lane.rows;
    char* data = lane.data;
    const size_t count = lane.count, used = lane.used, size = lane.data_size;
    const int64_t muted = lane.muted;
    PyObject* has_bad = lane.has_bad ? Py_True : Py_False;
    lane.forget();
    lane.muted = 0;
    Object(PyObject_CallMethod(decoder_, "flush", "iLnLnnLO", int(number), (long long)(intptr_t)rows, Py_ssize_t(count),
                               (long long)(intptr_t)data, Py_ssize_t(used), Py_ssize_t(size), (long long)muted, has_bad));
  }

 public:
  int32_t const_label = 0, as_strided_label = 0;

 private:
  PyObject* decoder_;  // borrowed: it owns this
  SummaryKernel summarise_;
  bool failed_last_ = false;
  int8_t dtype_codes_[64];
  Codes codes_;
  std::unordered_map<std::string, std::unique_ptr<Operator>> operators_;
  ska::flat_hash_map<const char*, Operator*> built_in_;  // by the address of their names
  std::vector<Entry> entries_;
  ska::flat_hash_map<uint64_t, int32_t> family_numbers_;
  std::vector<Family> families_;
  std::vector<int32_t> sequence_;  // entries in the order of the last run
  ska::flat_hash_map<uint64_t, int32_t> owner_scopes_;
  std::unordered_map<std::string, int32_t> stray_scopes_;
  ska::flat_hash_map<const c10::TensorImpl*, Parameter> parameters_;
  ska::flat_hash_map<const void*, int32_t> module_scopes_;
  TensorClasses tensor_classes_;
  KnownModules known_modules_;
  std::map<std::pair<PyObject*, int32_t>, KnownState> known_states_;
  std::vector<uint32_t> node_versions_;
  ska::flat_hash_map<const void*, Survivor> survivors_;
  ska::flat_hash_map<int32_t, uint64_t> gradient_specs_;  // by entry
  FreedStorages freed_storages_;
  std::vector<uint8_t> shown_bad_;  // by node: kinds of bad values whose making has been shown
  std::vector<std::pair<size_t, at::Tensor>> unseen_;
  std::vector<const at::Tensor*> outputs_;
};

// ---- what PyTorch calls ----

Observer* observer_of(Thread& thread) {
  Observer* observer = thread.observer != nullptr ? thread.observer : only_observer.load(std::memory_order_acquire);
  if (observer == nullptr || observer->run.generation != process_generation.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return observer;
}

// Work of our own must not be observed, nor become part of anybody's autograd graph.
struct Busy {
  explicit Busy(Thread& thread) : thread_(thread) { thread.busy = true; }
  ~Busy() { thread_.busy = false; }
  Thread& thread_;
};

template <class Work>
void guarded(Thread& thread, Observer& observer, const char* where, Work work) {
  Busy busy(thread);
  std::lock_guard<SpinLock> hold(observer.lock);
  try {
    work();
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    observer.fault(where, error.what());
  } catch (...) {
    observer.fault(where, "unknown");
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  Thread& thread = this_thread();
  if (thread.starting != &fn) {
    thread.starting = &fn;
    thread.calls += 1;
  }
  if (thread.busy) return nullptr;
  thread.depth += 1;
  if (thread.opaque_depth != 0) return nullptr;
  if (thread.observer == nullptr && torch::autograd::get_current_node() == nullptr) {
    thread.opaque_depth = thread.depth;  // a thread of a collective, not of autograd: how it works is not the program's
    thread.pending.valid = false;
    return nullptr;
  }
  if (Observer* observer = observer_of(thread)) {
    guarded(thread, *observer, "before an operator", [&] { observer->start(thread, fn); });
  }
  return nullptr;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  Thread& thread = this_thread();
  thread.starting = nullptr;
  if (thread.busy || thread.depth == 0) return;
  thread.depth -= 1;
  if (thread.opaque_depth != thread.depth + 1) return;
  thread.opaque_depth = 0;
  if (Observer* observer = observer_of(thread)) {
    guarded(thread, *observer, "after an operator", [&] { observer->end(thread, fn); });
  }
}

// The hooks that PyTorch calls around every module. In C, because in Python two of them cost more than the op between.

Observer* observed_by(PyObject* self) {
  auto* observer = static_cast<Observer*>(PyLong_AsVoidPtr(self));
  Thread& thread = this_thread();
  const bool is_ours =
      thread.observer == observer && !thread.busy && !is_being_traced() && observer_of(thread) != nullptr;
  return is_ours ? observer : nullptr;
}

PyObject* on_enter_module(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Observer* observer = count >= 2 ? observed_by(self) : nullptr;
  if (observer != nullptr) {
    guarded(this_thread(), *observer, "entering a module",
            [&] { observer->enter_module(arguments[0], arguments[1]); });
  }
  Py_RETURN_NONE;
}

PyObject* on_leave_module(PyObject* self, PyObject* const*, Py_ssize_t) {
  Observer* observer = observed_by(self);
  if (observer != nullptr && !observer->modules.empty()) observer->modules.pop_back();
  Py_RETURN_NONE;
}

PyObject* on_gradient(PyObject* self, PyObject* parameter) {
  Observer* observer = observed_by(self);
  if (observer != nullptr) {
    guarded(this_thread(), *observer, "after a gradient", [&] { observer->record_gradient(parameter); });
  }
  Py_RETURN_NONE;
}

PyMethodDef gradient_definition = {"gradient", on_gradient, METH_O, nullptr};
PyMethodDef enter_definition = {"enter_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_enter_module)),
                                METH_FASTCALL, nullptr};
PyMethodDef leave_definition = {"leave_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_leave_module)),
                                METH_FASTCALL, nullptr};

void in_forked_child() { process_generation.fetch_add(1); }

// One observed block of one thread.
struct Session {
  Thread saved;
};

}  // namespace
}  // namespace tensortap

// ---- what Python calls; the GIL is held ----

using namespace tensortap;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int tt_reads_frames() { return TENSORTAP_READS_FRAMES; }

EXPORT Observer* tt_new(PyObject* decoder, const int8_t* dtype_codes, void* summarise, int const_label,
                        int as_strided_label) {
  static const int registered = pthread_atfork(nullptr, nullptr, in_forked_child);
  (void)registered;
  auto* observer = new Observer(decoder, dtype_codes, reinterpret_cast<SummaryKernel>(summarise));
  observer->const_label = const_label;
  observer->as_strided_label = as_strided_label;
  return observer;
}

EXPORT void tt_delete(Observer* observer) { delete observer; }

EXPORT Plan* tt_new_plan() { return new Plan; }
EXPORT void tt_delete_plan(Plan* plan) { delete plan; }

EXPORT Session* tt_begin(Observer* observer, Plan* plan, int watches, int keep_bad) {
  Thread& thread = this_thread();
  plan->watches = watches != 0;
  observer->begin_run(plan, keep_bad);
  auto* session = new Session;
  std::swap(session->saved, thread);
  thread.observer = observer;
  thread.run = observer->run.id;
  return session;
}

EXPORT void tt_limit(Observer* observer, int64_t nodes, int64_t made, int64_t outside) {
  observer->run.limits = {size_t(nodes), size_t(made), size_t(outside)};
}
EXPORT int64_t tt_unrecorded(Observer* observer) { return observer->run.unrecorded; }

EXPORT void tt_add_lane(Observer* observer, int kind, double lower, double upper, int mute_if_healthy) {
  observer->run.lanes.push_back({Lane::Kind(kind), lower, upper, mute_if_healthy != 0});
}

// Has PyTorch call us for every operator of this thread; outside of runs that is for nothing.
EXPORT uint64_t tt_install() {
  using at::RecordScope;
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_start, on_end).needsInputs(true).needsOutputs(true).scopes({RecordScope::FUNCTION}));
}

EXPORT void tt_uninstall(uint64_t callback) { at::removeCallback(callback); }

EXPORT void tt_start(Observer* observer, Session*) {
  only_observer.store(observers_active.fetch_add(1) == 0 ? observer : nullptr);
}

EXPORT void tt_stop(Observer* observer, Session*) {
  observers_active.fetch_sub(1);
  only_observer.store(nullptr);
  Thread& thread = this_thread();
  Busy busy(thread);
  std::lock_guard<SpinLock> hold(observer->lock);
  try {
    observer->flush();
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    observer->fault("handing over the last records", error.what());
  }
}

EXPORT void tt_end(Observer* observer, Session* session) {
  observer->end_run();
  Thread& thread = this_thread();
  std::swap(session->saved, thread);
  thread.calls += session->saved.calls;  // of a run inside a run, which the profiler of the outer one has seen
  delete session;
}

EXPORT void tt_set_index(Observer* observer, int64_t index) { observer->run.index = index; }

// Before a run ends: the values whose memory is free, and (value, run, value there) of those that came bad from earlier runs.
EXPORT PyObject* tt_bad_values(Observer* observer) {
  try {
    observer->see_off_bad();
    const Run& run = observer->run;
    Object gone(PyList_New(0)), arrivals(PyList_New(0));
    for (Value value : run.gone) {
      Object number(PyLong_FromLongLong(value));
      if (PyList_Append(gone.get(), number.get()) != 0) throw Interrupted();
    }
    for (const Arrival& arrival : run.arrivals) {
      Object row(Py_BuildValue("(LLL)", (long long)arrival.value, (long long)arrival.run, (long long)arrival.origin));
      if (PyList_Append(arrivals.get(), row.get()) != 0) throw Interrupted();
    }
    return Py_BuildValue("(OO)", gone.get(), arrivals.get());
  } catch (...) {
    PyErr_Clear();
    return Py_BuildValue("([][])");
  }
}

// Bad values that have outlived their run, and how an observer that takes the place of another gets them.
EXPORT PyObject* tt_survivors(Observer* observer) {
  const std::vector<Value> values = observer->survivors();
  PyObject* list = PyList_New(Py_ssize_t(values.size()));
  for (size_t i = 0; list != nullptr && i < values.size(); ++i) {
    PyList_SET_ITEM(list, Py_ssize_t(i), PyLong_FromLongLong(values[i]));
  }
  return list;
}

EXPORT void tt_inherit(Observer* heir, Observer* observer, PyObject* values) {
  std::vector<Value> renamed;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) renamed.push_back(PyLong_AsLongLong(PyList_GET_ITEM(values, i)));
  heir->inherit(*observer, renamed);
}

EXPORT int64_t tt_node_count(Observer* observer) { return int64_t(observer->run.nodes.size()); }
EXPORT const int32_t* tt_nodes(Observer* observer) { return observer->run.nodes.data(); }

EXPORT void tt_trace(Observer* observer) { observer->run.traced = true; }
EXPORT int64_t tt_execution_count(Observer* observer) { return int64_t(observer->run.executions.size()); }
EXPORT const Execution* tt_executions(Observer* observer) { return observer->run.executions.data(); }

// What PyTorch is to call when a module is entered and left, and when the gradient of a parameter is complete.
EXPORT PyObject* tt_hooks(Observer* observer) {
  PyObject* self = PyLong_FromVoidPtr(observer);
  PyObject* hooks = Py_BuildValue("(NNN)", PyCFunction_New(&enter_definition, self),
                                  PyCFunction_New(&leave_definition, self), PyCFunction_New(&gradient_definition, self));
  Py_DECREF(self);
  return hooks;
}

EXPORT void tt_add_module(Observer* observer, int64_t module, int scope) {
  observer->add_module(reinterpret_cast<const void*>(module), scope);
}

EXPORT Scope* tt_scope(Observer* observer) { return &observer->scope; }

// An optimizer steps in this frame, or (None) no optimizer steps any more.
EXPORT void tt_step_in_frame(Observer* observer, PyObject* frame) {
  observer->optimizer_frame = PyFrame_Check(frame) ? frame : nullptr;
  observer->optimizer_place = PyFrame_Check(frame) ? frame_of(frame) : nullptr;
}

EXPORT int tt_covers(int64_t tensor) {
  try {
    return covers(borrowed(tensor));
  } catch (...) {
    return 0;
  }
}

EXPORT int tt_next(Observer* observer, int scope, int label) {
  try {
    return observer->next(scope, label);
  } catch (...) {
    return kNone;
  }
}

EXPORT int tt_reserve_entry(Observer* observer) { return observer->reserve_entry(); }

EXPORT int64_t tt_find(Observer* observer, int64_t tensor) {
  try {
    return observer->find(borrowed(tensor));
  } catch (...) {
    return kNoValue;
  }
}

EXPORT int tt_add_source(Observer* observer, int64_t tensor, int entry, int node) {
  try {
    observer->add_source(borrowed(tensor), entry, node);
    return 1;
  } catch (...) {
    return 0;
  }
}

EXPORT void tt_add_parameter(Observer* observer, int64_t tensor, int index, int scope, int label, int leaf_scope) {
  observer->add_parameter(reinterpret_cast<const c10::TensorImpl*>(tensor), {index, scope, label, leaf_scope});
}

EXPORT void tt_forget_known(Observer* observer) { observer->forget_known(); }

template <class Work>
int attempted(Observer* observer, const char* where, Work work) {
  WithPython python;
  try {
    return work();
  } catch (const std::exception& error) {
    observer->fault(where, error.what());
    return 0;
  }
}

EXPORT int tt_remember_known(Observer* observer, PyObject* roots, PyObject* parameters, PyObject* buffers) {
  return attempted(observer, "remembering modules", [&] {
    observer->remember_known(roots, parameters, buffers);
    return 1;
  });
}

EXPORT int tt_name_known(Observer* observer, PyObject* roots, int has_hooks) {
  return attempted(observer, "naming parameters", [&] { return int(observer->name_known(roots, has_hooks != 0)); });
}

EXPORT int tt_remember_state(Observer* observer, PyObject* optimizer, int scope, PyObject* parameters, PyObject* states) {
  return attempted(observer, "remembering an optimizer", [&] {
    observer->remember_state(optimizer, scope, parameters, states);
    return 1;
  });
}

EXPORT int tt_name_state(Observer* observer, PyObject* optimizer, int scope) {
  return attempted(observer, "naming the state of an optimizer", [&] { return int(observer->name_state(optimizer, scope)); });
}

EXPORT void tt_set_owner(Observer* observer, int64_t value, int owner) { observer->run.owners[value] = owner; }

EXPORT void tt_node_changed(Observer* observer, int node) { observer->node_changed(node); }

// From any thread: hands over what a run has gathered, in case it hangs. Not if its thread is at work itself; then the answer is 0.
EXPORT int tt_flush(Observer* observer) {
  std::unique_lock<SpinLock> hold(observer->lock, std::try_to_lock);
  if (!hold.owns_lock()) return 0;
  if (observer->run.plan == nullptr) return 1;
  try {
    observer->flush();
  } catch (const Interrupted&) {
  } catch (const std::exception& error) {
    observer->fault("handing over records", error.what());
  }
  return 1;
}

// The number of the first tensor in a list that has a NaN or an infinity, -1 if none has. With gradients, twice that
// number, plus one if it is the gradient that has. What cannot be read as it lies in memory goes to `unread`, by number.
EXPORT int tt_first_not_finite(PyObject* tensors, int with_gradients, PyObject* unread) {
  try {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
      const at::Tensor tensor = tensor_of(PyList_GET_ITEM(tensors, i));
      const int number = with_gradients ? 2 * int(i) : int(i);
      if (with_gradients) {
        const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
        if (gradient.defined() && !note_finite(gradient, number + 1, unread)) return number + 1;
      }
      if (!note_finite(tensor, number, unread)) return number;
    }
  } catch (const std::exception&) {
    return -2;
  }
  return -1;
}

EXPORT void tt_forget_codes(Observer* observer) { observer->forget_codes(); }

EXPORT void tt_free_rows(void* rows) { row_pool().give_back(rows, kRowBlock); }
EXPORT void tt_free_data(void* data, int64_t size) { pool().give_back(data, size_t(size)); }

#include "module_calls.h"
