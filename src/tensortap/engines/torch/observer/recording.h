// Records of watched outputs: summaries and copies go to their lanes, and from there to Python in blocks.
#pragma once

#include <time.h>

#include <array>

#include "blocks.h"
#include "dispatching.h"
#include "lanes.h"
#include "packed.h"
#include "parallel.h"
#include "pill.h"
#include "run.h"

namespace tensortap {

constexpr int kNotSummarised = -1;  // in place of kinds of bad values, which are those of pill.h

class Recording {
 public:
  Recording(const Decoder& decoder, Taps& taps, Run& run, const int8_t* dtype_codes, SummaryKernel kernel)
      : decoder_(decoder), taps_(taps), run_(run), summarise_(kernel) {
    std::memcpy(dtype_codes_, dtype_codes, sizeof dtype_codes_);
  }

  void begin_run() {
    last_time_ = oldest_ = 0;
    recent_.fill(Summarised{});
  }

  void end_run() {
    auto& last_use = run_.plan->last_use;
    last_use.resize(std::max(last_use.size(), lanes_.size()));
    for (size_t i = 0; i < lanes_.size(); ++i) {
      last_use[i] = lanes_[i].use();
      lanes_[i].discard();
    }
    lanes_.clear();
  }

  void add_lane(const Lane& lane) { lanes_.push_back(lane); }

  // Microseconds since the epoch, never less than before in a run.
  int64_t now() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t time = int64_t(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
    if (time > last_time_) last_time_ = time;
    return last_time_;
  }

  int emit(int32_t node, size_t slot, const at::Tensor& tensor, bool fresh) {
    int64_t time = 0;
    return emit(node, slot, tensor, fresh, time);
  }

  // Records an output; says which kinds of bad values it has, if its summary was made. A fresh one was made by an op just now.
  // The time is looked at, if it is 0, when there is something to record; the outputs of one op share it. If another value is
  // known to be the same memory, unwritten since, its summary is this one's.
  int emit(int32_t node, size_t slot, const at::Tensor& tensor, bool fresh, int64_t& time, Value value = kNoValue,
           Value same = kNoValue) {
    return emit(taps_.of(*run_.plan, node, slot), node, slot, tensor, fresh, time, value, same);
  }

  // For whoever knows what is watched of it.
  int emit(c10::ArrayRef<Tap> taps, int32_t node, size_t slot, const at::Tensor& tensor, bool fresh, int64_t& time,
           Value value = kNoValue, Value same = kNoValue) {
    if (taps.empty()) return kNotSummarised;
    if (!fresh && is_freed(tensor)) {
      decoder_.tell("without_data", "in", node, Py_ssize_t(slot));
      return kNotSummarised;
    }
    const int code = int(tensor.scalar_type()) < kDtypes ? dtype_codes_[int(tensor.scalar_type())] : kNone;
    if (!can_record(tensor, code, taps)) {
      const at::Tensor stored = copies_any(taps) ? at::Tensor() : stored_of(tensor);
      if (stored.defined() && can_record(stored, code, taps)) return emit(taps, node, slot, stored, true, time, value, same);
      flush();  // records leave in the order of time
      WithPython python;
      Object shown(THPVariable_Wrap(tensor));
      decoder_.ask("tap", "inO", node, Py_ssize_t(slot), shown.get());
      return kNotSummarised;
    }
    if (time == 0) time = now();
    int kinds = kNotSummarised;
    for (const Tap& tap : taps) {
      if (lanes_[tap.lane].kind == Lane::kSummary) {
        kinds = add_summary(size_t(tap.lane), tap.key, code, tensor, time, value, same);
      } else {
        add_copy(size_t(tap.lane), tap.key, tensor, time);
      }
    }
    if (oldest_ == 0) {
      oldest_ = time;
      if (!flush_is_due_) {  // small runs come and go before it is; one appointment is enough for all of them
        decoder_.tell("flush_later");
        flush_is_due_ = true;
      }
    } else if (time - oldest_ > kMaxAgeMicroseconds) {
      flush();
    }
    return kinds;
  }

  // Whoever was to hand records over has come.
  void note_flush() { flush_is_due_ = false; }

  // Whether something that has been gathered tells of a NaN or an infinity.
  bool has_bad() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.has_bad; });
  }

  // Hands over all that has been gathered.
  void flush() {
    for (size_t i = 0; i < lanes_.size(); ++i) flush_lane(i);
    oldest_ = 0;
  }

 private:
  static constexpr int kDtypes = 64;
  static constexpr int64_t kMaxAgeMicroseconds = 50'000;  // a program that hangs has shown all but the last moment

  bool can_record(const at::Tensor& tensor, int code, c10::ArrayRef<Tap> taps) const {
    if (!is_plain(tensor) || tensor.dim() > kMaxRank - 1) return false;
    for (const Tap& tap : taps) {
      if (tap.lane == kPythonLane) return false;
      if (lanes_[tap.lane].kind == Lane::kSummary && (code < 0 || !summarise_)) return false;
    }
    return true;
  }

  bool copies_any(c10::ArrayRef<Tap> taps) const {
    return std::any_of(taps.begin(), taps.end(), [this](const Tap& tap) {
      return tap.lane != kPythonLane && lanes_[tap.lane].kind == Lane::kCopy;
    });
  }

  // What is stored of a sparse tensor, which is what is seen of it (values.py: view_of); undefined of others. To copies belongs
  // where the values are in it, which Python finds out.
  static at::Tensor stored_of(const at::Tensor& tensor) {
    if (is_wrapper(tensor) || !tensor.is_cpu()) return {};
    Unnoticed unnoticed;
    try {
      switch (tensor.layout()) {
        case c10::kSparse: return tensor.coalesce().values();
        case c10::kSparseCsr:
        case c10::kSparseCsc:
        case c10::kSparseBsr:
        case c10::kSparseBsc: return tensor.values();
        default: return {};
      }
    } catch (const c10::Error&) {  // it may be none
      return {};
    }
  }

  // One of the last summaries, and where in its lane it and what is beside it are, counted from the beginning of the run; or
  // that it was muted.
  struct Summarised {
    Value value = kNoValue;
    size_t lane = 0, position = 0, beside = 0;
    bool muted = false;
  };

  const Summarised* find_recent(Value value, size_t lane) const {
    if (value == kNoValue) return nullptr;
    for (const Summarised& each : recent_) {
      const bool is_there = each.muted || each.position >= lanes_[lane].all_count;
      if (each.value == value && each.lane == lane) return is_there ? &each : nullptr;
    }
    return nullptr;
  }

  int add_summary(size_t number, uint32_t key, int code, const at::Tensor& tensor, int64_t time, Value value, Value same) {
    Lane& lane = lanes_[number];
    const Summarised* known = find_recent(same, number);
    if (known != nullptr && known->muted) {
      lane.muted += 1;
      return 0;
    }
    PackedPill made;
    alignas(double) char beside[(PILL_SIZE + kMaxRank) * sizeof(double)];
    int kinds = 0;
    if (known != nullptr) {
      std::memcpy(&made, lane.rows + (known->position - lane.all_count) * sizeof made, sizeof made);
      if (made.extra() != 0) std::memcpy(beside, lane.data + (known->beside - lane.all_used), made.extra());
      if (made.is_whole) kinds = pill_kinds(reinterpret_cast<const double*>(beside));
    } else {
      double pill[PILL_SIZE + kMaxRank];
      summarise(lane, code, tensor, pill);
      kinds = pill_kinds(pill);
      if (lane.mute_if_healthy && pill_is_healthy(pill)) {
        recent_[next_recent_++ % recent_.size()] = {value, number, 0, 0, true};
        lane.muted += 1;
        return kinds;
      }
      made = packed(pill, size_t(tensor.dim()), beside);
    }
    made.key = key;
    add_packed(number, made, beside, time);
    recent_[next_recent_++ % recent_.size()] = {value, number, lane.all_count + lane.count - 1,
                                                lane.all_used + lane.used - made.extra(), false};
    lane.has_bad |= kinds != 0;
    return kinds;
  }

  void add_packed(size_t number, PackedPill& made, const char* beside, int64_t time) {
    Lane& lane = lanes_[number];
    if (lane.count != 0 && uint64_t(time - lane.base) > UINT32_MAX) flush_lane(number);  // an hour for one op
    char* extra = room_for(number, made.extra());
    if (lane.count == 0) lane.base = time;
    made.time = uint32_t(time - lane.base);
    if (made.extra() != 0) std::memcpy(extra, beside, made.extra());
    std::memcpy(lane.rows + lane.count * sizeof made, &made, sizeof made);
    lane.count += 1;
    lane.used += made.extra();
    lane.value_bytes += made.unpacked();
  }

  void summarise(const Lane& lane, int code, const at::Tensor& tensor, double* row) const {
    const size_t rank = size_t(tensor.dim());
    const void* values = tensor.const_data_ptr();
    if (tensor.is_contiguous() && summarise_in_parallel(summarise_, values, code, tensor.numel(), tensor.element_size(),
                                                        lane.lower, lane.upper, row)) {
      row[PILL_RANK] = double(rank);
      for (size_t i = 0; i < rank; ++i) row[PILL_SIZE + i] = double(tensor.size(int64_t(i)));
    } else {
      summarise_(values, code, int(rank), tensor.sizes().data(), tensor.strides().data(), lane.lower, lane.upper, row);
    }
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
    Lane& lane = lanes_[number];
    Row row = {key, uint32_t(tensor.dim()), time, int64_t(lane.used), int64_t(nbytes), {}};
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), row.dims);
    std::memcpy(lane.rows + lane.count * sizeof row, &row, sizeof row);
    lane.count += 1;
    lane.used += nbytes;
    lane.value_bytes += nbytes;
  }

  char* room_for(size_t number, size_t nbytes) {
    Lane& lane = lanes_[number];
    // Values can be mapped from the file, so they lie at multiples of 64.
    const size_t alignment = lane.kind == Lane::kCopy ? 64 : 8;
    const size_t aligned = (lane.used + alignment - 1) & ~(alignment - 1);
    if (lane.has_room(aligned, nbytes)) {
      if (aligned != lane.used) std::memset(lane.data + lane.used, 0, aligned - lane.used);  // it is written, too
      lane.used = aligned;
      return lane.data + aligned;
    }
    const bool is_first = lane.has_row() && lane.data == nullptr;  // that needs any
    if (!is_first) {
      flush_lane(number);
      lane.discard();  // what is left of it is empty
    }
    if (!lane.make_room(nbytes, last_use(number))) throw std::bad_alloc();
    return lane.data + lane.used;
  }

  LaneUse last_use(size_t number) const {
    const auto& known = run_.plan->last_use;
    return number < known.size() ? known[number] : LaneUse{};
  }

  void flush_lane(size_t number) {
    Lane& lane = lanes_[number];
    if (lane.count == 0 && lane.muted == 0) return;
    WithPython python;
    const long long muted = lane.muted, base = lane.base, value_bytes = (long long)lane.value_bytes;
    PyObject* has_bad = lane.has_bad ? Py_True : Py_False;
    const size_t row_bytes = lane.count * lane.row_bytes(), data_bytes = lane.used;
    PyObject* made_rows = handed_over(lane.rows, lane.row_size, row_bytes, lane.are_rows_well_filled());
    PyObject* made_data = handed_over(lane.data, lane.data_size, data_bytes, lane.is_data_well_filled());
    lane.start_again();  // whatever happens now
    Object rows(made_rows), data(made_data);
    decoder_.ask("take", "iOOLOLL", int(number), rows.get(), data.get(), muted, has_bad, base, value_bytes);
  }

  // What is gathered in a block: the block itself, which the lane has no more then, or a copy.
  static PyObject* handed_over(char*& block, size_t& size, size_t used, bool itself) {
    if (!itself) return PyBytes_FromStringAndSize(used == 0 ? "" : block, Py_ssize_t(used));
    char* given = block;
    const size_t given_size = size;
    block = nullptr;
    size = 0;
    return new_block(given, given_size, used);
  }

  const Decoder& decoder_;
  Taps& taps_;
  Run& run_;
  SummaryKernel summarise_;
  int8_t dtype_codes_[kDtypes];
  std::vector<Lane> lanes_;
  std::array<Summarised, 16> recent_;  // a gradient is complete a few ops after it was made
  size_t next_recent_ = 0;
  bool flush_is_due_ = false;           // another thread will hand over what there is then
  int64_t last_time_ = 0, oldest_ = 0;  // times of records: the last, and the first that has not been handed over
};

}  // namespace tensortap
