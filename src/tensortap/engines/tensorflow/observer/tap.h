// The op that is added behind a node: it looks at what the node has made, and records it.
#pragma once

#include <time.h>

#include <cmath>
#include <cstring>

#include "pill.h"
#include "recorder.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensortap {

namespace tf = tensorflow;

constexpr const char* kTapOp = "TensortapTap";
constexpr int kMostDimensions = 254;  // of a TensorFlow tensor
constexpr int kDtypes = 64;

using SummaryKernel = void (*)(const void* data, int dtype, int rank, const int64_t* sizes, const int64_t* strides,
                               double lower, double upper, double* row);

// What Python has told us once.
inline SummaryKernel summarise = nullptr;
inline int8_t dtype_codes[kDtypes];  // the kernel's code of each DataType, -1 where it has none

inline int code_of(tf::DataType dtype) {
  const int number = int(tf::BaseType(dtype));
  return number >= 0 && number < kDtypes ? dtype_codes[number] : -1;
}

inline int64_t now_in_microseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
}

// A run of elements has one dimension, however many the tensor has.
inline void summarise_tensor(const tf::Tensor& tensor, double lower, double upper, double* row) {
  const int64_t count = tensor.NumElements(), stride = 1;
  const void* data = tensor.IsInitialized() ? tensor.data() : nullptr;
  summarise(data, code_of(tensor.dtype()), 1, &count, &stride, lower, upper, row);
  row[PILL_RANK] = tensor.dims();
  for (int i = 0; i < tensor.dims(); ++i) row[PILL_SIZE + i] = double(tensor.dim_size(i));
}

// One of the tensors a tap looks at.
struct Seen {
  int64_t number;
  uint32_t lanes;
};

class Tap : public tf::OpKernel {
 public:
  explicit Tap(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    int64_t recorder;
    std::vector<int64_t> numbers;
    std::vector<int32_t> lanes;
    OP_REQUIRES_OK(construction, construction->GetAttr("recorder", &recorder));
    OP_REQUIRES_OK(construction, construction->GetAttr("numbers", &numbers));
    OP_REQUIRES_OK(construction, construction->GetAttr("lanes", &lanes));
    OP_REQUIRES_OK(construction, construction->GetAttr("is_invariant", &is_invariant_));
    recorder_ = recorders().find(recorder);
    made_ = lanes.size();
    for (size_t i = 0; i < numbers.size(); ++i) seen_.push_back({numbers[i], i < made_ ? uint32_t(lanes[i]) : 0});
  }

  // It must not be sent to another thread: what waits for it continues in this one.
  bool IsExpensive() override { return false; }

  void Compute(tf::OpKernelContext* context) override {
    if (recorder_ == nullptr || !recorder_->is_armed()) return;
    if (is_invariant_ && context->frame_iter().iter_id > 0) return;
    int kinds = 0;
    for (size_t i = 0; i < made_; ++i) {
      with_tensor(context, int(i), [&](const tf::Tensor& tensor) { kinds |= record(context, seen_[i], tensor); });
    }
    if (kinds != 0 && made_ < seen_.size()) keep_if_made(context, kinds);
  }

 private:
  // Shows an input; of a variable, its value.
  template <class Show>
  void with_tensor(tf::OpKernelContext* context, int index, Show show) {
    if (input_type(index) != tf::DT_RESOURCE) return show(context->input(index));
    tf::core::RefCountPtr<tf::Var> variable;
    if (!tf::LookupResource(context, tf::HandleFromInput(context, index), &variable).ok()) return;
    tf::tf_shared_lock hold(*variable->mu());
    show(*variable->tensor());
  }

  // The kinds of bad values it tells of, as far as it was summarised.
  int record(tf::OpKernelContext* context, const Seen& seen, const tf::Tensor& tensor) {
    int kinds = 0;
    const auto& lanes = recorder_->watch->lanes;
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if ((seen.lanes >> lane & 1) == 0) continue;
      if (lanes[lane].kind == kPill) {
        kinds |= record_pill(context, seen, int(lane), tensor);
      } else {
        record_value(context, seen, int(lane), 0, tensor);
      }
    }
    return kinds;
  }

  int record_pill(tf::OpKernelContext* context, const Seen& seen, int number, const tf::Tensor& tensor) {
    const Lane& lane = recorder_->watch->lanes[size_t(number)];
    double pill[PILL_SIZE + kMostDimensions];
    summarise_tensor(tensor, lane.lower, lane.upper, pill);
    if (lane.mute_if_healthy && pill_is_healthy(pill)) {
      recorder_->mute(size_t(number));
      return 0;
    }
    const int64_t size = PILL_SIZE + tensor.dims();
    const auto room = recorder_->reserve(size_t(size) * sizeof(double), false);
    const int kinds = pill_kinds(pill);
    if (room.block == nullptr) return kinds;
    describe(context, room, seen.number, number, 0);
    room.row->rank = 1;
    room.row->dims[0] = size;
    std::memcpy(room.data, pill, size_t(size) * sizeof(double));
    recorder_->finish(room, kinds != 0);
    return kinds;
  }

  void record_value(tf::OpKernelContext* context, const Seen& seen, int lane, uint32_t flags,
                    const tf::Tensor& tensor) {
    if (!tensor.IsInitialized()) return;
    const bool is_text = tensor.dtype() == tf::DT_STRING;
    if (!is_text && code_of(tensor.dtype()) < 0) return;
    const bool is_apart = is_text || tensor.dims() > kMaxRank;
    const size_t head = is_apart ? size_t(tensor.dims()) * sizeof(int64_t) : 0;
    const size_t size = is_text ? packed_size(tensor) : tensor.tensor_data().size();
    const auto room = recorder_->reserve(head + size, true);
    if (room.block == nullptr) return;
    describe(context, room, seen.number, lane, flags | (is_apart ? uint32_t(kApart) : 0));
    room.row->rank = uint32_t(tensor.dims());
    auto* dims = is_apart ? reinterpret_cast<int64_t*>(room.data) : room.row->dims;
    for (int i = 0; i < tensor.dims(); ++i) dims[i] = tensor.dim_size(i);
    if (is_text) {
      pack(tensor, room.data + head);
    } else if (size != 0) {
      std::memcpy(room.data + head, tensor.tensor_data().data(), size);
    }
    recorder_->finish(room, false);
  }

  void describe(tf::OpKernelContext* context, const Recorder::Room& room, int64_t number, int lane, uint32_t flags) {
    room.row->key = uint32_t(number);
    room.row->timestamp = now_in_microseconds();
    std::memset(room.row->dims, 0, sizeof room.row->dims);
    const tf::FrameAndIter place = context->frame_iter();
    const bool in_loop = place.frame_id != tf::kIllegalFrameId;
    *room.execution = {lane, flags, in_loop ? uint64_t(place.frame_id) : 0, in_loop ? int64_t(place.iter_id) : 0,
                       context->step_id()};
  }

  // As the store packs strings: all lengths, then all contents.
  static size_t packed_size(const tf::Tensor& tensor) {
    size_t size = 0;
    const auto texts = tensor.flat<tf::tstring>();
    for (int64_t i = 0; i < texts.size(); ++i) size += sizeof(uint64_t) + texts(i).size();
    return size;
  }

  static void pack(const tf::Tensor& tensor, char* to) {
    const auto texts = tensor.flat<tf::tstring>();
    for (int64_t i = 0; i < texts.size(); ++i) {
      const uint64_t length = texts(i).size();
      std::memcpy(to, &length, sizeof length);
      to += sizeof length;
    }
    for (int64_t i = 0; i < texts.size(); ++i) {
      std::memcpy(to, texts(i).data(), texts(i).size());
      to += texts(i).size();
    }
  }

  // A NaN made of infinities counts as made, an infinity only if nothing bad came in: see bad_values.py.
  void keep_if_made(tf::OpKernelContext* context, int found) {
    int inherited = 0;
    for (size_t i = made_; i < seen_.size(); ++i) {
      with_tensor(context, int(i), [&](const tf::Tensor& tensor) {
        if (code_of(tensor.dtype()) < 0) return;
        double pill[PILL_SIZE + kMostDimensions];
        summarise_tensor(tensor, -INFINITY, INFINITY, pill);
        inherited |= pill_kinds(pill);
      });
      if (inherited & KIND_NAN) return;
    }
    const int made = inherited != 0 ? found & KIND_NAN & ~inherited : found;
    if (made == 0 || !recorder_->watch->is_news(seen_[0].number, made) || !recorder_->may_keep()) return;
    for (size_t i = made_; i < seen_.size(); ++i) keep(context, i, kKeptInput);
    for (size_t i = 0; i < made_; ++i) keep(context, i, kKeptOutput);
  }

  void keep(tf::OpKernelContext* context, size_t i, uint32_t flag) {
    with_tensor(context, int(i),
                [&](const tf::Tensor& tensor) { record_value(context, seen_[i], -1, flag, tensor); });
  }

  std::shared_ptr<Recorder> recorder_;
  std::vector<Seen> seen_;  // what the node made, then, if it may be to blame for bad values, what it made it of
  size_t made_ = 0;
  bool is_invariant_ = false;  // in a loop it has the same value in every iteration
};

REGISTER_OP("TensortapTap")
    .Input("tensors: T")
    .Attr("T: list(type)")
    .Attr("recorder: int")
    .Attr("numbers: list(int)")
    .Attr("lanes: list(int)")
    .Attr("is_invariant: bool = false")
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc("Records what it is given. It has no state for TensorFlow: executors would otherwise share it by its name.");

REGISTER_KERNEL_BUILDER(Name("TensortapTap").Device(tf::DEVICE_CPU), Tap);

}  // namespace tensortap
