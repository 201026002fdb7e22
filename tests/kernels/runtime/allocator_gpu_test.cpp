#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/event.hpp"
#include "tests/kernels/runtime/gpu_kernels.hpp"
#include "tests/kernels/runtime/gpu_test.hpp"

namespace warpmeter {
namespace {

using AllocatorGpu = test::GpuTest;
constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_F(AllocatorGpu, TakesSegmentsFromTheDeviceAndGivesThemBack) {
  CachingAllocator allocator(gpu_);
  const std::size_t before = free_memory_bytes(gpu_);
  void* const small = allocator.allocate(1000, default_stream_);
  void* const large = allocator.allocate(5 * kMiB, default_stream_);
  void* const huge = allocator.allocate(101 * kMiB, default_stream_);
  EXPECT_EQ(allocator.stats().current.reserved, (2 + 20 + 102) * kMiB);
  EXPECT_LE(free_memory_bytes(gpu_), before - 122 * kMiB);
  for (void* block : {small, large, huge}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0U);
    cudaPointerAttributes attributes{};
    WM_CUDA_CHECK(cudaPointerGetAttributes(&attributes, block));
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQ(attributes.device, 0);
    allocator.free(block);
  }
  EXPECT_EQ(allocator.allocate(101 * kMiB, default_stream_), huge) << "cached";
  allocator.free(huge);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().current.reserved, 0U);
  EXPECT_GT(free_memory_bytes(gpu_), before - 64 * kMiB);
}

TEST_F(AllocatorGpu, MoreThanTheDeviceHasIsOutOfMemoryAndNothingElse) {
  CachingAllocator allocator(gpu_);
  std::size_t free = 0, total = 0;
  WM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  try {
    static_cast<void>(allocator.allocate(total + 1, default_stream_));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested(), total + 1);
    EXPECT_EQ(error.limit(), total);
    // The driver may have given something of its own back in between.
    std::size_t free_after = 0;
    WM_CUDA_CHECK(cudaMemGetInfo(&free_after, &total));
    EXPECT_LE(error.free(), std::max(free, free_after));
    EXPECT_GT(error.free(), free / 2);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the refusal was cleared";
  void* const block = allocator.allocate(kMiB, default_stream_);
  EXPECT_NO_THROW(fill_bytes(block, gpu_, 1, kMiB, default_stream_));
  EXPECT_NO_THROW(synchronize(gpu_));
  allocator.free(block);
  EXPECT_EQ(allocator.stats().ooms, 1U);
}

TEST_F(AllocatorGpu, ACacheThatFillsTheDeviceGivesWay) {
  CachingAllocator allocator(gpu_);
  const std::size_t most = allocator.available_bytes() / 4 * 3 / (2 * kMiB) * (2 * kMiB);
  allocator.free(allocator.allocate(most, default_stream_));
  EXPECT_EQ(allocator.stats().current.reserved, most);
  allocator.free(allocator.allocate(most + 2 * kMiB, default_stream_));
  EXPECT_EQ(allocator.stats().retries, 1U);
  EXPECT_EQ(allocator.stats().current.reserved, most + 2 * kMiB);
}

TEST_F(AllocatorGpu, TheLimitMakesASmallerDevice) {
  CachingAllocator allocator(gpu_);
  allocator.set_memory_limit(100 * kMiB);
  EXPECT_EQ(allocator.available_bytes(), 100 * kMiB);
  void* const block = allocator.allocate(90 * kMiB, default_stream_);
  EXPECT_THROW(static_cast<void>(allocator.allocate(11 * kMiB, default_stream_)), OutOfMemory);
  allocator.free(block);
}

TEST_F(AllocatorGpu, ABlockThatAnotherStreamReadsIsNotHandedOutAgain) {
  CachingAllocator allocator(gpu_);
  const Stream own(gpu_);
  const Stream other(gpu_);
  auto* const first = static_cast<int*>(allocator.allocate(kMiB, own));
  test::launch_add(other, first, 0, 0);
  synchronize(gpu_);

  test::launch_delayed_write(other, 200, first, 7);
  allocator.record_stream(first, other);
  allocator.free(first);
  void* const second = allocator.allocate(kMiB, own);
  EXPECT_NE(second, first) << "the other stream still writes to it";
  synchronize(other.view());
  void* const third = allocator.allocate(kMiB, own);
  EXPECT_EQ(third, first);
  allocator.free(second);
  allocator.free(third);
}

TEST_F(AllocatorGpu, ReuseOnOneStreamIsInItsOrder) {
  CachingAllocator allocator(gpu_);
  const Stream stream(gpu_);
  auto* const first = static_cast<int*>(allocator.allocate(4, stream));
  test::launch_delayed_write(stream, 50, first, 1);
  allocator.free(first);
  auto* const second = static_cast<int*>(allocator.allocate(4, stream));
  EXPECT_EQ(second, first) << "at once: the stream keeps the order";
  fill_bytes(second, gpu_, 0, 4, stream);
  int value = -1;
  copy_bytes(&value, Device::cpu(), second, gpu_, 4, stream);
  EXPECT_EQ(value, 0);
  allocator.free(second);
}

TEST_F(AllocatorGpu, ManyThreadsAndStreams) {
  CachingAllocator allocator(gpu_);
  std::vector<std::thread> threads;
  for (int id = 1; id <= 4; ++id) {
    threads.emplace_back([&allocator, id] {
      const Stream stream(Device::cuda(0));
      for (int round = 0; round < 200; ++round) {
        const int count = 1000 + 137 * ((round * id) % 50);
        auto* const block = static_cast<int*>(allocator.allocate(static_cast<std::size_t>(count) * 4, stream));
        fill_bytes(block, Device::cuda(0), 0, static_cast<std::size_t>(count) * 4, stream);
        test::launch_add(stream, block, count, id);
        int ends[2] = {};
        copy_bytes(&ends[0], Device::cpu(), block, Device::cuda(0), 4, stream);
        copy_bytes(&ends[1], Device::cpu(), block + count - 1, Device::cuda(0), 4, stream);
        EXPECT_EQ(ends[0], id);
        EXPECT_EQ(ends[1], id);
        allocator.free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().current.allocated, 0U);
}

TEST_F(AllocatorGpu, TheHarnessMemoryIsCountedApart) {
  CachingAllocator allocator(gpu_);
  void* const flush = allocator.allocate_for_harness(64 * kMiB);
  fill_bytes(flush, gpu_, 0, 64 * kMiB, default_stream_);
  synchronize(gpu_);
  EXPECT_EQ(allocator.stats().harness, 64 * kMiB);
  EXPECT_EQ(allocator.stats().current.reserved, 0U);
  allocator.free_for_harness(flush, 64 * kMiB);
}

}  // namespace
}  // namespace warpmeter
