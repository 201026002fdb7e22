#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/event.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tests/kernels/runtime/gpu_kernels.hpp"
#include "tests/kernels/runtime/gpu_test.hpp"

namespace warpmeter {
namespace {

using DeviceGpu = test::GpuTest;
using StreamGpu = test::GpuTest;
using EventGpu = test::GpuTest;
using ErrorsGpu = test::GpuTest;
using ErrorsGpuDeathTest = test::GpuTest;

TEST_F(DeviceGpu, PropertiesAgreeWithTheRuntimes) {
  const DeviceProperties p = properties(gpu_);
  cudaDeviceProp expected{};
  WM_CUDA_CHECK(cudaGetDeviceProperties(&expected, 0));
  EXPECT_EQ(p.name, expected.name);
  EXPECT_EQ(p.sm, expected.major * 10 + expected.minor);
  EXPECT_EQ(p.multiprocessors, expected.multiProcessorCount);
  EXPECT_EQ(p.memory_bytes, expected.totalGlobalMem);
  EXPECT_EQ(p.last_level_cache_bytes, static_cast<std::size_t>(expected.l2CacheSize));
  EXPECT_TRUE(
      std::regex_match(p.uuid, std::regex("(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")))
      << p.uuid;
  EXPECT_TRUE(std::regex_match(p.cuda_runtime, std::regex("[0-9]+\\.[0-9]+"))) << p.cuda_runtime;
  EXPECT_EQ(p.cores, 0);
  EXPECT_TRUE(p.isa.empty());
  if (p.driver.empty()) {  // no management library: nothing of it is made up
    EXPECT_EQ(p.clock_mhz, 0);
    EXPECT_EQ(p.memory_clock_mhz, 0);
  } else {
    EXPECT_TRUE(std::regex_match(p.driver, std::regex("[0-9]+(\\.[0-9]+)+"))) << p.driver;
    EXPECT_GT(p.clock_mhz, 0);
    EXPECT_GE(p.max_clock_mhz, p.clock_mhz);
    EXPECT_GT(p.memory_clock_mhz, 0);
  }
  RecordProperty("uuid", p.uuid);
  RecordProperty("driver", p.driver);
  RecordProperty("clock_mhz", p.clock_mhz);
}

TEST_F(DeviceGpu, IsFoundByName) {
  EXPECT_EQ(parse_device("auto"), gpu_);
  EXPECT_EQ(parse_device("cuda"), gpu_);
  EXPECT_EQ(cuda_unavailable_reason(), "");
  EXPECT_THROW(static_cast<void>(parse_device("cuda:" + std::to_string(cuda_device_count()))), std::invalid_argument);
}

TEST_F(DeviceGpu, FreeMemoryFallsByWhatIsTaken) {
  CachingAllocator allocator(gpu_);
  const std::size_t bytes = std::size_t{256} << 20;
  const std::size_t before = free_memory_bytes(gpu_);
  ASSERT_LE(before, properties(gpu_).memory_bytes);
  void* const block = allocator.allocate(bytes, default_stream_);
  EXPECT_LE(free_memory_bytes(gpu_), before - bytes);
  allocator.free(block);
  allocator.empty_cache();
  EXPECT_GT(free_memory_bytes(gpu_), before - bytes / 2);
}

TEST_F(StreamGpu, CopiesInEveryDirection) {
  CachingAllocator on_gpu(gpu_);
  CachingAllocator on_host(Device::cpu());
  const Stream stream(gpu_);
  const Context gpu{stream, &on_gpu};
  const Context host{host_, &on_host};
  const Tensor source(host, {3, 1000003}, DType::int32);
  for (std::int64_t i = 0; i < source.elements(); ++i) {
    source.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 - 5);
  }
  const Tensor there = source.to(gpu);
  EXPECT_EQ(there.device(), gpu_);
  const Tensor twice = there.to(gpu);
  EXPECT_NE(twice.data(), there.data());
  const Tensor back = twice.to(host);
  EXPECT_EQ(back.device(), Device::cpu());
  EXPECT_EQ(std::memcmp(back.data(), source.data(), source.bytes()), 0);
}

TEST_F(StreamGpu, CopiesWithHostMemoryAreDoneOnReturn) {
  CachingAllocator allocator(gpu_);
  const Stream stream(gpu_);
  void* const block = allocator.allocate(4, stream);
  test::launch_delayed_write(stream, 30, static_cast<int*>(block), 41);
  int value = 0;
  copy_bytes(&value, Device::cpu(), block, gpu_, sizeof(value), stream);
  EXPECT_EQ(value, 41) << "after the stream's work, before returning";
  value = 5;
  copy_bytes(block, gpu_, &value, Device::cpu(), sizeof(value), stream);
  value = 6;
  int read = 0;
  copy_bytes(&read, Device::cpu(), block, gpu_, sizeof(read), stream);
  EXPECT_EQ(read, 5);
  allocator.free(block);
}

TEST_F(StreamGpu, FillsInItsOrder) {
  CachingAllocator allocator(gpu_);
  const Stream stream(gpu_);
  const int count = 100000;
  auto* const block = static_cast<int*>(allocator.allocate(count * sizeof(int), stream));
  fill_bytes(block, gpu_, 0, count * sizeof(int), stream);
  for (int i = 0; i < 10; ++i) test::launch_add(stream, block, count, i);
  std::vector<int> host(count);
  copy_bytes(host.data(), Device::cpu(), block, gpu_, host.size() * sizeof(int), stream);
  for (const int value : host) ASSERT_EQ(value, 45);
  allocator.free(block);
  EXPECT_THROW(fill_bytes(block, gpu_, 0, 4, host_), CheckError);
}

TEST_F(StreamGpu, DoNotWaitForEachOtherUnlessToldTo) {
  CachingAllocator allocator(gpu_);
  const Stream slow(gpu_);
  const Stream fast(gpu_);
  auto* const block = static_cast<int*>(allocator.allocate(2 * sizeof(int), slow));
  fill_bytes(block, gpu_, 0, 2 * sizeof(int), slow);
  test::launch_add(fast, block, 0, 0);  // loads the kernels before anything blocks
  synchronize(gpu_);

  test::launch_delayed_write(slow, 200, block, 1);
  Event slow_done(gpu_);
  slow_done.record(slow);
  test::launch_add(fast, block + 1, 1, 1);
  synchronize(fast.view());
  EXPECT_FALSE(slow_done.query()) << "the other stream was waited for";

  slow_done.block(fast);
  test::launch_add(fast, block, 1, 10);
  synchronize(fast.view());
  EXPECT_TRUE(slow_done.query());
  int values[2] = {};
  copy_bytes(values, Device::cpu(), block, gpu_, sizeof(values), fast);
  EXPECT_EQ(values[0], 11) << "the write came first";
  EXPECT_EQ(values[1], 1);
  allocator.free(block);
}

TEST_F(EventGpu, ElapsedTimeIsTheKernels) {
  const Stream stream(gpu_);
  test::launch_delayed_write(stream, 1, nullptr, 0);
  synchronize(stream.view());
  Event begin(gpu_);
  Event end(gpu_);
  begin.record(stream);
  test::launch_delayed_write(stream, 50, nullptr, 0);
  end.record(stream);
  EXPECT_FALSE(end.query());
  end.synchronize();
  EXPECT_TRUE(end.query());
  EXPECT_GE(elapsed_ms(begin, end), 49.5);
  EXPECT_LT(elapsed_ms(begin, end), 60.0);
}

TEST_F(EventGpu, OfTwoKindsOfDevicesAreNotCompared) {
  Event here(gpu_);
  Event host(Device::cpu());
  here.record(default_stream_);
  host.record(host_);
  EXPECT_THROW(static_cast<void>(elapsed_ms(here, host)), CheckError);
  EXPECT_THROW(here.record(host_), CheckError);
  EXPECT_NO_THROW(here.block(host_)) << "the host waits";
  EXPECT_TRUE(here.query());
}

TEST_F(EventGpu, AnUnrecordedOneCannotBeTimed) {
  const Event begin(gpu_);
  const Event end(gpu_);
  EXPECT_THROW(static_cast<void>(elapsed_ms(begin, end)), DeviceError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the refusal was cleared";
}

TEST_F(ErrorsGpu, ARefusedCallNamesItselfAndIsCleared) {
  try {
    WM_CUDA_CHECK(cudaSetDevice(12345));
    FAIL();
  } catch (const DeviceError& error) {
    const std::string what = error.what();
    EXPECT_FALSE(error.sticky());
    EXPECT_NE(what.find("cudaSetDevice(12345)"), std::string::npos) << what;
    EXPECT_NE(what.find("cudaErrorInvalidDevice"), std::string::npos) << what;
    EXPECT_NE(what.find("device_gpu_test.cpp:"), std::string::npos) << what;
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  int calls = 0;
  WM_CUDA_CHECK((++calls, cudaSuccess));
  EXPECT_EQ(calls, 1);
}

TEST_F(ErrorsGpu, ARefusedLaunchThrowsAndLeavesTheContextWhole) {
  try {
    test::launch_refused(default_stream_);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_FALSE(error.sticky());
    EXPECT_NE(std::string(error.what()).find("gpu_kernels.cu:"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(synchronize(gpu_));
  EXPECT_NO_THROW(test::launch_delayed_write(default_stream_, 0, nullptr, 0));
  EXPECT_NO_THROW(synchronize(gpu_));
}

// In a child process, whose context is lost.
TEST_F(ErrorsGpuDeathTest, AnIllegalAddressIsSticky) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        CachingAllocator allocator(Device::cuda(0));
        const Stream stream(Device::cuda(0));
        void* const block = allocator.allocate(100, stream);
        int status = 1;
        try {
          test::launch_illegal_write(stream);
          synchronize(stream.view());
        } catch (const DeviceError& error) {
          status =
              error.sticky() && std::string(error.what()).find("cudaErrorIllegalAddress") != std::string::npos ? 0 : 2;
        }
        try {
          static_cast<void>(allocator.allocate(std::size_t{1} << 30, stream));
          status = 3;
        } catch (const DeviceError& error) {
          if (!error.sticky()) status = 4;
        } catch (const OutOfMemory&) {
          status = 5;  // a lost context is no lack of memory
        }
        allocator.free(block);
        std::exit(status);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace warpmeter
