// The op that is put between a node and all that use one of its outputs: there a run stops until somebody says what goes on.
//
// Unlike a tap it hands the value on, so that another one can take its place. What it hands on is memory of its own: what
// the node made may be shared with a variable or a constant.
#pragma once

#include "tap.h"

namespace tensortap {

constexpr const char* kStopOp = "TensortapStop";
constexpr uint32_t kStopLane = 1u << 31;  // among the lanes of an output: the run stops there

class Stop : public tf::OpKernel {
 public:
  explicit Stop(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    int64_t recorder;
    OP_REQUIRES_OK(construction, construction->GetAttr("recorder", &recorder));
    OP_REQUIRES_OK(construction, construction->GetAttr("number", &number_));
    recorder_ = recorders().find(recorder);
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& given = context->input(0);
    const OnStop on_stop = recorder_ == nullptr ? nullptr : recorder_->watch->on_stop;
    if (on_stop == nullptr || !recorder_->is_armed() || !given.IsInitialized() || given.dims() > kMaxRank) {
      return context->set_output(0, given);
    }
    tf::Tensor* handed_on;
    OP_REQUIRES_OK(context, context->allocate_output(0, given.shape(), &handed_on));
    const auto size = given.tensor_data().size();
    if (size != 0) std::memcpy(handed_on->data(), given.data(), size);
    Stopped stopped{recorder_->watch->handle, recorder_->id, number_, given.dims(), {}, handed_on->data(), int64_t(size)};
    for (int i = 0; i < given.dims(); ++i) stopped.dims[i] = given.dim_size(i);
    on_stop(&stopped);
  }

 private:
  std::shared_ptr<Recorder> recorder_;
  int64_t number_ = 0;
};

REGISTER_OP("TensortapStop")
    .Input("tensor: T")
    .Output("handed_on: T")
    .Attr("T: type")
    .Attr("recorder: int")
    .Attr("number: int")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc("Waits, and hands on what it is given, or what somebody has put in its place.");

REGISTER_KERNEL_BUILDER(Name("TensortapStop").Device(tf::DEVICE_CPU), Stop);

}  // namespace tensortap
