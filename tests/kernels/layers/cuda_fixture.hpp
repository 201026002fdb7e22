#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "kernels/layers/step_state.hpp"
#include "tests/kernels/layers/reference.hpp"

namespace warpmeter::layers::testing {

/// The step's scalars on a device.
class DeviceState {
 public:
  explicit DeviceState(const Context& context, StepState state = {})
      : context_(context), buffer_(context, sizeof(state)) {
    set(state);
  }
  void set(StepState state) const {
    copy_bytes(buffer_.data(), context_.device(), &state, Device::cpu(), sizeof(state), context_.stream);
    synchronize(context_.stream);
  }
  [[nodiscard]] StepState get() const {
    StepState state;
    copy_bytes(&state, Device::cpu(), buffer_.data(), context_.device(), sizeof(state), context_.stream);
    synchronize(context_.stream);
    return state;
  }
  [[nodiscard]] StepState* data() const { return static_cast<StepState*>(buffer_.data()); }

 private:
  Context context_;
  Buffer buffer_;
};

/// A stream and an allocator on the first CUDA device; skips where there is none.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device: " << cuda_unavailable_reason();
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
    context_ = {stream_->view(), allocator_.get()};
  }

  [[nodiscard]] DeviceArray array(const Values& values, DType dtype) const { return {context_, values, dtype}; }
  [[nodiscard]] DeviceArray empty(std::int64_t count, DType dtype) const { return {context_, count, dtype}; }
  [[nodiscard]] DeviceArray whole(const Tokens& tokens) const {
    return {context_, Values(tokens.begin(), tokens.end()), DType::int32};
  }
  /// Poisoned.
  template <class Arguments>
  [[nodiscard]] DeviceArray workspace(const Arguments& arguments) const {
    const auto bytes = static_cast<std::int64_t>(workspace_bytes(context_.device(), arguments));
    return empty((bytes + 7) / 4, DType::fp32);
  }

  Context context_;

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
};

}  // namespace warpmeter::layers::testing
