#include <cstring>
#include <stdexcept>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/random.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter {
namespace {

class MultiGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs two GPUs, " << cuda_device_count() << " found";
  }
};

int current() {
  int device = -1;
  WM_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

TEST_F(MultiGpu, TheGuardRestoresADeviceThatWasUsed) {
  WM_CUDA_CHECK(cudaSetDevice(0));
  WM_CUDA_CHECK(cudaFree(nullptr));
  {
    const DeviceGuard outer(Device::cuda(1));
    EXPECT_EQ(current(), 1);
    {
      const DeviceGuard inner(Device::cuda(0));
      EXPECT_EQ(current(), 0);
      const DeviceGuard same(Device::cuda(0));
      EXPECT_EQ(current(), 0);
    }
    EXPECT_EQ(current(), 1);
  }
  EXPECT_EQ(current(), 0);
  try {
    const DeviceGuard guard(Device::cuda(1));
    throw std::runtime_error("left early");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(current(), 0);
  }
}

TEST_F(MultiGpu, CopiesBetweenGpusAndEqualFills) {
  CachingAllocator first(Device::cuda(0));
  CachingAllocator second(Device::cuda(1));
  CachingAllocator host(Device::cpu());
  const Stream stream0(Device::cuda(0));
  const Stream stream1(Device::cuda(1));
  const Context on0{stream0, &first};
  const Context on1{stream1, &second};
  const Context on_host{{Device::cpu(), nullptr}, &host};
  const Tensor a(on0, {1000003}, DType::fp32);
  fill_normal(a, 1, 1, stream0);
  const Tensor copied = a.to(on1);
  EXPECT_EQ(copied.device(), Device::cuda(1));
  const Tensor filled(on1, {1000003}, DType::fp32);
  fill_normal(filled, 1, 1, stream1);
  const Tensor x = copied.to(on_host);
  const Tensor y = filled.to(on_host);
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.bytes()), 0);
  EXPECT_EQ(current(), 0);
  EXPECT_NE(properties(Device::cuda(0)).uuid, properties(Device::cuda(1)).uuid);
}

}  // namespace
}  // namespace warpmeter
