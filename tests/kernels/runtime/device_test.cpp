#include "kernels/runtime/device.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/detail/backend.hpp"
#include "kernels/runtime/detail/host_info.hpp"

namespace warpmeter {
namespace {

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(parse_device(text));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << '"' << text << "\" was accepted";
  return {};
}

TEST(Device, Names) {
  EXPECT_EQ(name(Device::cpu()), "cpu");
  EXPECT_EQ(name(Device::cuda()), "cuda:0");
  EXPECT_EQ(name(Device::cuda(3)), "cuda:3");
}

TEST(Device, ParsesCpuAndAuto) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("auto"), cuda_device_count() > 0 ? Device::cuda(0) : Device::cpu());
}

TEST(Device, RefusesOtherWordsNamingThemAndWhatIsAccepted) {
  for (const char* text : {"", "gpu", "CPU", "cpu:0", "cpu ", "cuda:", "cuda:x", "cuda:0x1", "cuda:-1", "cuda:+1",
                           "cuda: 1", "cuda:1 ", "cuda0", "cudax", "cuda:1:2"}) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find("device '" + std::string(text) + "' is not known"), std::string::npos) << message;
    EXPECT_NE(message.find("accepted are auto"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Device, RefusesDevicesThatAreNotThere) {
  for (const char* text : {"cuda:4096", "cuda:99999999999999999999"}) {
    EXPECT_NE(refusal(text).find("is not there"), std::string::npos);
  }
  if (cuda_device_count() == 0) {
    const std::string message = refusal("cuda");
    EXPECT_NE(message.find("is not there (" + cuda_unavailable_reason() + ")"), std::string::npos) << message;
    EXPECT_NE(message.find("accepted are auto and cpu"), std::string::npos) << message;
  } else {
    EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
    EXPECT_EQ(parse_device("cuda:0"), Device::cuda(0));
  }
}

TEST(Device, SaysWhyThereIsNoCuda) {
  EXPECT_EQ(cuda_unavailable_reason().empty(), cuda_device_count() > 0);
  if (!built_with_cuda()) {
    EXPECT_EQ(cuda_device_count(), 0);
    EXPECT_EQ(cuda_unavailable_reason(), "built without CUDA");
    EXPECT_THROW(static_cast<void>(properties(Device::cuda(0))), DeviceError);
  }
}

TEST(Device, CpuProperties) {
  const DeviceProperties p = properties(Device::cpu());
  EXPECT_FALSE(p.name.empty());
  EXPECT_GE(p.cores, 1);
  EXPECT_EQ(p.isa, name(cpu_isa()));
  EXPECT_GT(p.memory_bytes, std::size_t{64} << 20);
  EXPECT_EQ(p.sm, 0);
  EXPECT_EQ(p.multiprocessors, 0);
  EXPECT_TRUE(p.uuid.empty());
  EXPECT_TRUE(p.driver.empty());
  EXPECT_TRUE(p.cuda_runtime.empty());
  EXPECT_GT(free_memory_bytes(Device::cpu()), 0U);
  EXPECT_LE(free_memory_bytes(Device::cpu()), p.memory_bytes);
  EXPECT_NO_THROW(synchronize(Device::cpu()));
  EXPECT_NO_THROW(const DeviceGuard guard(Device::cpu()));
}

// Host memory that was handed out but not touched is not free any more, though the kernel still says so.
TEST(CpuBackend, PromisedMemoryCountsAsUsed) {
  detail::Backend& cpu = detail::backend_cpu();
  const std::size_t step = std::size_t{2} << 20;
  const std::size_t most = cpu.free_memory(0) / 10 * 6 / step * step;
  void* const first = cpu.allocate(0, most);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % step, 0U);
  EXPECT_EQ(cpu.allocate(0, most), nullptr) << "two times 60% of the free memory";
  cpu.free(0, first, most);
  void* const again = cpu.allocate(0, most);
  EXPECT_NE(again, nullptr);
  cpu.free(0, again, most);
}

TEST(CpuBackend, TouchedMemoryIsNotCountedTwice) {
  detail::Backend& cpu = detail::backend_cpu();
  const std::size_t bytes = std::size_t{64} << 20;
  // What the backend holds back from what the kernel calls available. Other processes change the latter between the
  // two readings: the median of several pairs.
  const auto held_back = [&] {
    std::vector<double> gaps;
    for (int i = 0; i < 9; ++i) {
      const auto available = static_cast<double>(detail::host_memory().available);
      gaps.push_back(available - static_cast<double>(cpu.free_memory(0)));
    }
    std::sort(gaps.begin(), gaps.end());
    return gaps[4];
  };
  const double before = held_back();
  void* const memory = cpu.allocate(0, bytes);
  ASSERT_NE(memory, nullptr);
  const double tolerance = static_cast<double>(bytes) / 4;
  EXPECT_NEAR(held_back() - before, static_cast<double>(bytes), tolerance) << "promised";
  cpu.fill(memory, 1, bytes / 2, 0, nullptr);
  EXPECT_NEAR(held_back() - before, static_cast<double>(bytes) / 2, tolerance) << "half touched";
  cpu.fill(memory, 1, bytes, 0, nullptr);
  EXPECT_NEAR(held_back() - before, 0.0, tolerance) << "touched";
  cpu.free(0, memory, bytes);
  EXPECT_NEAR(held_back() - before, 0.0, tolerance) << "given back";
}

}  // namespace
}  // namespace warpmeter
