#include "tools/harness/doctor/nvml.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "tools/harness/doctor/doctor.hpp"
#include "tools/harness/doctor/load_watch.hpp"

namespace warpmeter::harness::doctor {
namespace {

/// The fake library, which reads what it is from the environment at each call.
class FakeNvml : public testing::Test {
 protected:
  static void is(const char* text) { setenv("FAKE_NVML", text, 1); }
  void TearDown() override { unsetenv("FAKE_NVML"); }
  static GpuSystem system(const char* text) {
    is(text);
    return Nvml(WM_FAKE_NVML).system();
  }
};

TEST_F(FakeNvml, WithoutTheLibraryNothingIsKnown) {
  const Nvml nvml("libno-such-library.so.1");
  EXPECT_FALSE(nvml.ready());
  const GpuSystem found = nvml.system();
  EXPECT_FALSE(found.library_found);
  EXPECT_NE(found.failure.find("libno-such-library.so.1"), std::string::npos);
  EXPECT_TRUE(found.gpus.empty());
  EXPECT_EQ(nvml.whole_gpu("GPU-0"), "");
  EXPECT_FALSE(nvml.load("GPU-0").clock_mhz);
  EXPECT_TRUE(gpu_warnings(nvml, "GPU-0", "cuda:0").empty());
}

TEST_F(FakeNvml, ALibraryThatIsAnother) {
  const GpuSystem found = Nvml("libdl.so.2").system();
  EXPECT_TRUE(found.library_found);
  EXPECT_FALSE(found.failure.empty());
}

TEST_F(FakeNvml, WhatATwoGpuServerSays) {
  const GpuSystem found = system("");
  EXPECT_TRUE(found.library_found);
  EXPECT_EQ(found.failure, "");
  EXPECT_EQ(found.driver, "580.159.04");
  EXPECT_EQ(found.driver_cuda, 13000);
  ASSERT_EQ(found.gpus.size(), 2U);
  const GpuFacts& gpu = found.gpus[1];
  EXPECT_EQ(gpu.nvml_index, 1);
  EXPECT_FALSE(gpu.cuda_index);
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-1");
  EXPECT_EQ(gpu.pci_bus_id, "00000000:1B:00.0");
  EXPECT_EQ(gpu.sm, 90);
  EXPECT_EQ(gpu.memory_mib, 143771);
  EXPECT_EQ(gpu.memory_used_mib, 0);
  EXPECT_EQ(gpu.clock_mhz, 345);
  EXPECT_EQ(gpu.max_clock_mhz, 1980);
  EXPECT_EQ(gpu.memory_clock_mhz, 3201);
  EXPECT_EQ(gpu.max_memory_clock_mhz, 3201);
  EXPECT_EQ(gpu.throttle, std::uint64_t{kThrottleIdle});
  EXPECT_EQ(gpu.utilization_percent, 0);
  EXPECT_TRUE(gpu.other_processes.empty());
  EXPECT_EQ(gpu.ecc, true);
  EXPECT_EQ(gpu.ecc_pending, true);
  EXPECT_EQ(gpu.uncorrected_ecc_errors, 0U);
  EXPECT_EQ(gpu.mig, false);
  EXPECT_EQ(gpu.power_w, 75.5);
  EXPECT_EQ(gpu.power_limit_w, 700);
  EXPECT_EQ(gpu.default_power_limit_w, 700);
  EXPECT_EQ(gpu.temperature_c, 31);
  EXPECT_EQ(gpu.persistence, true);
  EXPECT_EQ(gpu.compute_mode, 0);
  EXPECT_EQ(gpu.pcie_generation, 1);
  EXPECT_EQ(gpu.max_pcie_generation, 5);
  EXPECT_EQ(gpu.pcie_width, 16);
  EXPECT_EQ(gpu.max_pcie_width, 16);
  EXPECT_EQ(gpu.nvlinks, 18);
  EXPECT_EQ(found.peers, (std::vector<std::vector<Peer>>{{Peer::self, Peer::nvlink}, {Peer::nvlink, Peer::self}}));
}

TEST_F(FakeNvml, WhatAGpuDoesNotSupportStaysOpen) {
  const GpuSystem found = system(
      "count=1;throttle=none;ecc=none;mig=none;power=none;power_limit=none;temperature=none;utilization=none;clock="
      "none;"
      "nvlinks=none;persistence=none;sm=none;ecc_errors=none;compute_mode=none;width=none");
  ASSERT_EQ(found.gpus.size(), 1U);
  const GpuFacts& gpu = found.gpus[0];
  EXPECT_FALSE(gpu.throttle || gpu.ecc || gpu.mig || gpu.power_w || gpu.power_limit_w || gpu.temperature_c);
  EXPECT_FALSE(gpu.utilization_percent || gpu.clock_mhz || gpu.nvlinks || gpu.persistence || gpu.sm);
  EXPECT_FALSE(gpu.uncorrected_ecc_errors || gpu.compute_mode || gpu.pcie_width);
  EXPECT_EQ(gpu.max_clock_mhz, 1980);
}

TEST_F(FakeNvml, ADriverThatDoesNotStart) {
  GpuSystem found = system("init=18");
  EXPECT_TRUE(found.version_mismatch);
  EXPECT_EQ(found.failure, "Driver/library version mismatch");
  EXPECT_TRUE(found.gpus.empty());
  found = system("init=9");
  EXPECT_FALSE(found.version_mismatch);
  EXPECT_EQ(found.failure, "Driver Not Loaded");
}

TEST_F(FakeNvml, AGpuThatMayNotBeSeenIsLeftOut) {
  const GpuSystem found = system("0.hidden=1");
  ASSERT_EQ(found.gpus.size(), 1U);
  EXPECT_EQ(found.gpus[0].nvml_index, 1);
  EXPECT_EQ(found.peers.size(), 1U);
}

TEST_F(FakeNvml, Peers) {
  EXPECT_EQ(system("peers=pcie").peers[0][1], Peer::pcie);
  EXPECT_EQ(system("peers=none").peers[0][1], Peer::none);
  EXPECT_EQ(system("peers=unknown").peers[0][1], Peer::unknown);
}

TEST_F(FakeNvml, OtherProcessesWithoutThisOne) {
  is("pids=2");
  const GpuLoad load = Nvml(WM_FAKE_NVML).load("GPU-0");
  ASSERT_EQ(load.other_processes.size(), 2U);
  EXPECT_EQ(load.other_processes[0].pid, 4001U);
  EXPECT_EQ(load.other_processes[0].memory_mib, 100);
  EXPECT_FALSE(load.other_processes[1].memory_mib);
}

TEST_F(FakeNvml, ASliceIsOfItsGpu) {
  is("1.clock=1200");
  const Nvml nvml(WM_FAKE_NVML);
  EXPECT_EQ(nvml.whole_gpu("MIG-1"), "GPU-1");
  EXPECT_EQ(nvml.whole_gpu("GPU-0"), "GPU-0");
  EXPECT_EQ(nvml.whole_gpu("GPU-7"), "");
  EXPECT_EQ(nvml.load("MIG-1").clock_mhz, 1200);
}

TEST_F(FakeNvml, HighUtilizationIsAskedForAgainASecondLater) {
  using Clock = std::chrono::steady_clock;
  const Nvml nvml(WM_FAKE_NVML);
  is("utilization=5");
  // Did it wait, each attempt would take a second; a busy machine does not hold up every one of them.
  bool at_once = false;
  for (int attempt = 0; attempt < 20 && !at_once; ++attempt) {
    const auto begin = Clock::now();
    EXPECT_EQ(nvml.settled_utilization("GPU-0"), 5);
    at_once = Clock::now() - begin < std::chrono::milliseconds(900);
  }
  EXPECT_TRUE(at_once);
  is("utilization=60");
  const auto begin = Clock::now();
  EXPECT_EQ(nvml.settled_utilization("GPU-0"), 60);
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(FakeNvml, WarningsBeforeASweep) {
  const Nvml nvml(WM_FAKE_NVML);
  is("");
  EXPECT_TRUE(gpu_warnings(nvml, "GPU-0", "cuda:0").empty());
  is("0.throttle=0x60;0.pids=1");
  const auto found = gpu_warnings(nvml, "GPU-0", "cuda:0");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].id, "gpu_shared");
  EXPECT_EQ(found[1].id, "gpu_throttled");
  EXPECT_NE(found[1].seen.find("hardware thermal slowdown, software thermal slowdown"), std::string::npos);
  EXPECT_TRUE(gpu_warnings(nvml, "GPU-1", "cuda:1").empty());
}

TEST_F(FakeNvml, WatchingABusyGpu) {
  const auto watched = [](const char* text) {
    is(text);
    const Nvml nvml(WM_FAKE_NVML);
    LoadWatch watch(nvml, "GPU-0");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    GpuFacts gpu;
    watch.write(gpu);
    return gpu;
  };
  GpuFacts gpu = watched("throttle=0x4;clock=1755");
  EXPECT_EQ(gpu.load_throttle, std::uint64_t{kThrottleSoftwarePowerCap});
  EXPECT_EQ(gpu.load_clock_mhz, 1755);
  gpu = watched("throttle=0;clock=none");
  EXPECT_EQ(gpu.load_throttle, 0U);
  EXPECT_FALSE(gpu.load_clock_mhz);
  // Never at work, or nothing known of it: no figure of a load.
  EXPECT_FALSE(watched("throttle=1;clock=345").load_throttle);
  EXPECT_FALSE(watched("throttle=none").load_throttle);
  const Nvml nothing("libno-such-library.so.1");
  LoadWatch(nothing, "GPU-0").write(gpu = {});
  EXPECT_FALSE(gpu.load_throttle || gpu.load_clock_mhz);
}

}  // namespace
}  // namespace warpmeter::harness::doctor
