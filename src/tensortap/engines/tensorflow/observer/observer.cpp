// Sees the tensors of the graphs that TensorFlow executes, by operations added to them.
//
//   doors.h       how graphs reach us before they are executed: sessions
//   functions.h   the same for functions
//   instrument.h  where taps are added
//   tap.h         what a tap does
//   stop.h        where a run waits
//   recorder.h    who collects what taps have seen
//   records.h     rows and values in memory
//
// Only plain C symbols are exported; see library.py for their use.

#include "doors.h"

using namespace tensortap;

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// What Python holds on to.
struct RecorderHandle {
  std::shared_ptr<Recorder> recorder;
};

}  // namespace

// What every call relies on; before everything else, and again only with the same values.
EXPORTED void tt_configure(void* summary, const int8_t* codes) {
  summarise = reinterpret_cast<SummaryKernel>(summary);
  std::copy_n(codes, kDtypes, dtype_codes);
  static std::once_flag once;
  std::call_once(once, [] {
    open_door_of_sessions();
    executor_type("", 0);
  });
}

EXPORTED void* tt_new_watch(int64_t handle, const Lane* lanes, int32_t lane_count, int32_t keep_bad,
                            int64_t value_limit, Describe describe, OnFull on_full, OnStop on_stop) {
  auto watch = std::make_shared<Watch>();
  watch->handle = handle;
  watch->lanes.assign(lanes, lanes + lane_count);
  watch->keep_bad = keep_bad;
  watch->value_limit = value_limit;
  watch->describe = describe;
  watch->on_full = on_full;
  watch->on_stop = on_stop;
  return new std::shared_ptr<Watch>(std::move(watch));
}

EXPORTED void tt_delete_watch(void* watch) { delete static_cast<std::shared_ptr<Watch>*>(watch); }

EXPORTED void* tt_new_recorder(void* watch) {
  return new RecorderHandle{recorders().add(*static_cast<std::shared_ptr<Watch>*>(watch))};
}

EXPORTED void tt_delete_recorder(void* handle) {
  auto* held = static_cast<RecorderHandle*>(handle);
  held->recorder->disarm();
  recorders().remove(held->recorder->id);
  delete held;
}

EXPORTED int64_t tt_recorder_id(void* handle) { return static_cast<RecorderHandle*>(handle)->recorder->id; }
EXPORTED void tt_arm(void* handle) { static_cast<RecorderHandle*>(handle)->recorder->arm(); }
EXPORTED void tt_disarm(void* handle) { static_cast<RecorderHandle*>(handle)->recorder->disarm(); }

// Functions called by this thread are watched from now on; null for not any more.
EXPORTED void tt_watch_functions(void* handle) {
  armed_here = handle == nullptr ? nullptr : static_cast<RecorderHandle*>(handle)->recorder;
}

// The layout is known to library.py.
struct Taken {
  Block* block;
  Row* rows;
  Execution* executions;
  char* data;
  int64_t count, used;
  int32_t has_bad, has_apart;
};

EXPORTED int32_t tt_take(void* handle, int32_t is_last, Taken* taken) {
  Block* block = static_cast<RecorderHandle*>(handle)->recorder->take(is_last != 0);
  if (block == nullptr) return 0;
  *taken = {block,         block->rows,    block->executions, block->data, int64_t(block->count), int64_t(block->used),
            block->has_bad, block->has_apart};
  return 1;
}

EXPORTED void tt_give_back(Block* block) { delete_block(block); }

// Counts since the last call: faults, dropped values, and muted pills of each lane.
EXPORTED void tt_counts(void* handle, int64_t* counts) {
  Recorder& recorder = *static_cast<RecorderHandle*>(handle)->recorder;
  counts[0] = recorder.take_faults();
  counts[1] = recorder.take_dropped();
  for (size_t lane = 0; lane < recorder.muted.size(); ++lane) counts[2 + lane] = recorder.muted[lane].exchange(0);
}
