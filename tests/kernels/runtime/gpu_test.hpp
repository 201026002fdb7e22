#pragma once

#include <string>

#include <gtest/gtest.h>

#include "kernels/runtime/context.hpp"

namespace warpmeter::test {

/// A test that needs a GPU: skips with the reason where there is none. `allocator_` is empty at the start of each.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  }

  const Device gpu_ = Device::cuda(0);
  const StreamView host_{Device::cpu(), nullptr};
  const StreamView default_stream_{gpu_, nullptr};
};

}  // namespace warpmeter::test
