#include "tools/harness/doctor/datasheet.hpp"

#include <gtest/gtest.h>

#include "tests/tools/harness/doctor/healthy.hpp"
#include "tools/harness/doctor/libraries.hpp"

namespace warpmeter::harness::doctor {
namespace {

TEST(Datasheet, KnowsGpusByTheirWholeName) {
  const DatasheetEntry* const h200 = find_datasheet("NVIDIA H200");
  ASSERT_NE(h200, nullptr);
  EXPECT_EQ(h200->fp32_tflops, 67);
  EXPECT_EQ(h200->half_tflops, 989.5);
  EXPECT_EQ(h200->memory_gbps, 4800);
  EXPECT_NE(find_datasheet("NVIDIA H200 NVL"), nullptr);
  EXPECT_NE(find_datasheet("NVIDIA H200 NVL"), h200);
  for (const char* other : {"NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA H100", "H200", ""}) {
    EXPECT_EQ(find_datasheet(other), nullptr) << other;
  }
}

TEST(Datasheet, NoEntryIsWithSparsity) {
  // Tensor cores that sum in fp32 do 16-bit products at twice the tf32 rate on every GPU of the table.
  for (const char* name :
       {"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe",
        "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA L40S",
        "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090", "NVIDIA B200"}) {
    const DatasheetEntry* const entry = find_datasheet(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_NEAR(entry->half_tflops / entry->tf32_tflops, 2.0, 0.03) << name;
    EXPECT_GE(entry->tf32_tflops, entry->fp32_tflops) << name;
    EXPECT_GT(entry->memory_gbps, 800) << name;
    EXPECT_FALSE(entry->source.empty()) << name;
  }
}

HostFacts cpu(const char* vendor, int family, int model, const char* isa) {
  HostFacts host;
  host.vendor = vendor;
  host.family = family;
  host.model = model;
  host.isa = isa;
  return host;
}

TEST(Datasheet, FlopsACycle) {
  EXPECT_EQ(flops_per_cycle(cpu("GenuineIntel", 6, 143, "avx512")), 64);           // Sapphire Rapids
  EXPECT_EQ(flops_per_cycle(cpu("GenuineIntel", 6, 143, "avx2")), 32);             // narrowed
  EXPECT_EQ(flops_per_cycle(cpu("GenuineIntel", 6, 79, "avx2")), 32);              // Broadwell
  EXPECT_EQ(flops_per_cycle(cpu("GenuineIntel", 6, 85, "avx512")), std::nullopt);  // one unit or two
  EXPECT_EQ(flops_per_cycle(cpu("GenuineIntel", 6, 151, "avx2")), std::nullopt);   // hybrid
  EXPECT_EQ(flops_per_cycle(cpu("AuthenticAMD", 0x17, 0x01, "avx2")), 16);         // Zen
  EXPECT_EQ(flops_per_cycle(cpu("AuthenticAMD", 0x17, 0x31, "avx2")), 32);         // Zen 2
  EXPECT_EQ(flops_per_cycle(cpu("AuthenticAMD", 0x19, 0x11, "avx512")), 32);       // Zen 4
  EXPECT_EQ(flops_per_cycle(cpu("AuthenticAMD", 0x1A, 0x02, "avx512")), 64);       // Zen 5
  EXPECT_EQ(flops_per_cycle(cpu("AuthenticAMD", 0x1A, 0x02, "generic")), std::nullopt);
  EXPECT_EQ(flops_per_cycle(cpu("", 0, 0, "generic")), std::nullopt);
}

TEST(Datasheet, PeakOfACpu) {
  HostFacts host = healthy_cpu_machine().host;
  EXPECT_DOUBLE_EQ(cpu_peak_tflops(host).value(), 8 * 3800e6 * 64 / 1e12);
  host.usable_cores = 3;  // a quota
  EXPECT_DOUBLE_EQ(cpu_peak_tflops(host).value(), 3 * 3800e6 * 64 / 1e12);
  host.max_clock_mhz.reset();
  EXPECT_DOUBLE_EQ(cpu_peak_tflops(host).value(), 3 * 2000e6 * 64 / 1e12);
  host.clock_mhz.reset();
  EXPECT_FALSE(cpu_peak_tflops(host));
  host = healthy_cpu_machine().host;
  host.allowed_cores = 0;
  EXPECT_FALSE(cpu_peak_tflops(host));
}

TEST(Datasheet, StandsBesideWhatWasMeasured) {
  Facts facts = healthy_gpu_machine();
  facts.datasheet.reset();
  facts.ceilings = {{"matmul_tf32_tflops", 412, std::nullopt}, {"copy_gbps", 4282, std::nullopt}};
  add_datasheet(facts, "NVIDIA H200");
  EXPECT_EQ(facts.ceilings[0].datasheet, 494.5);
  EXPECT_EQ(facts.ceilings[1].datasheet, 4800);
  EXPECT_EQ(facts.datasheet.value().source, "NVIDIA H200 datasheet");

  facts.datasheet.reset();
  facts.ceilings[0].datasheet.reset();
  add_datasheet(facts, "NVIDIA T1000");
  EXPECT_FALSE(facts.datasheet || facts.ceilings[0].datasheet);

  facts = healthy_cpu_machine();
  facts.datasheet.reset();
  add_datasheet(facts, "");
  EXPECT_DOUBLE_EQ(facts.ceilings[0].datasheet.value(), 1.9456);
  EXPECT_FALSE(facts.ceilings[1].datasheet);  // nobody says what a CPU's memory can do
  EXPECT_EQ(facts.datasheet.value().name, "8 cores x 3800 MHz x 64 FLOPs a cycle (avx512)");
}

TEST(Libraries, WhatIsFoundIsSaid) {
  const auto nowhere = [](const std::vector<std::string>&) { return std::optional<std::string>(); };
  const auto somewhere = [](const std::vector<std::string>& names) {
    return std::optional<std::string>("/opt/" + names.front());
  };
  std::vector<std::string> names;
  for (const LibraryFacts& library : read_libraries(nowhere)) {
    names.push_back(library.name);
    EXPECT_EQ(library.built.empty(), !library.built_without.empty()) << library.name;
    if (library.name == "OpenBLAS") {
      EXPECT_TRUE(library.loaded.has_value());  // linked: no need to look for it
    }
    if (library.name == "NCCL") {
      EXPECT_FALSE(library.loaded);
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"OpenBLAS", "CUDA runtime", "cuBLAS", "CUDA driver", "NVML", "cuDNN",
                                             "NCCL", "MPI", "Gloo", "NVTX (nvToolsExt)"}));
  for (const LibraryFacts& library : read_libraries(somewhere)) {
    if (library.name == "NCCL") {
      EXPECT_EQ(library.loaded, "/opt/libnccl.so.2");
    }
  }
}

TEST(Libraries, TheLoaderIsAsked) {
  EXPECT_FALSE(find_library({"libno-such-library.so.1", ""}));
  const auto found = find_library({"libno-such-library.so.1", "libc.so.6"});
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("libc.so.6"), std::string::npos);
}

TEST(Environment, OnlyWhatMatters) {
  setenv("OMP_NUM_THREADS", "3", 1);
  setenv("WARPMETER_SECRET", "x", 1);
  const auto environment = read_environment();
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(environment.count("WARPMETER_SECRET"), 0U);
  EXPECT_EQ(environment.count("PATH"), 0U);
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace warpmeter::harness::doctor
