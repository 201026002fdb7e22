#pragma once

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

/// A server with two H200 at rest, of which cuda:0 was measured; nothing about it is odd.
[[nodiscard]] inline Facts healthy_gpu_machine() {
  Facts facts;
  facts.tool = "attn_bench";
  facts.argv = {"attn_bench", "--doctor"};
  facts.checked_at = "2026-01-31T12:00:00Z";
  facts.device = "cuda:0";
  facts.build.project = "0.1.0";
  facts.build.git_sha = "0123456789abcdef0123456789abcdef01234567";
  facts.build.dirty = false;
  facts.build.build_type = "Release";
  facts.build.compiler = "GNU 13.3.0";
  facts.build.cuda = "13.0, architectures 90a-real";

  HostFacts& host = facts.host;
  host.cpu = "Intel(R) Xeon(R) Platinum 8480+";
  host.vendor = "GenuineIntel";
  host.family = 6;
  host.model = 143;
  host.features = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"};
  host.isa = host.machine_isa = "avx512";
  host.native_bf16 = true;
  for (int cpu = 0; cpu < 8; ++cpu) host.allowed.push_back(cpu);
  host.online = host.present = host.allowed;
  host.usable_cores = host.allowed_cores = 8;
  host.smt = false;
  host.governors = {"performance"};
  host.turbo = true;
  host.clock_mhz = 2000;
  host.max_clock_mhz = 3800;
  host.numa_nodes = {0};
  host.machine_numa_nodes = 2;
  host.memory_bytes = std::size_t{128} << 30;
  host.available_bytes = std::size_t{120} << 30;
  host.huge_pages = "madvise";
  host.load = 0.25;
  host.nvidia_device = true;

  GpuSystem& system = facts.gpu_system;
  system.library_found = true;
  system.driver = "580.159.04";
  system.driver_cuda = 13000;
  for (int index = 0; index < 2; ++index) {
    GpuFacts gpu;
    gpu.nvml_index = index;
    gpu.cuda_index = index;
    gpu.name = "NVIDIA H200";
    gpu.uuid = "GPU-" + std::to_string(index);
    gpu.pci_bus_id = index == 0 ? "00000000:19:00.0" : "00000000:3B:00.0";
    gpu.sm = 90;
    gpu.memory_mib = 143771;
    gpu.memory_used_mib = 0;
    gpu.clock_mhz = 345;
    gpu.max_clock_mhz = 1980;
    gpu.memory_clock_mhz = gpu.max_memory_clock_mhz = 3201;
    gpu.throttle = kThrottleIdle;
    gpu.utilization_percent = 0;
    gpu.ecc = gpu.ecc_pending = true;
    gpu.uncorrected_ecc_errors = 0;
    gpu.mig = false;
    gpu.power_w = 75.5;
    gpu.power_limit_w = gpu.default_power_limit_w = 700;
    gpu.temperature_c = 31;
    gpu.persistence = true;
    gpu.compute_mode = 0;
    gpu.pcie_generation = 1;
    gpu.max_pcie_generation = 5;
    gpu.pcie_width = gpu.max_pcie_width = 16;
    gpu.nvlinks = 18;
    gpu.numa_node = 0;
    system.gpus.push_back(gpu);
  }
  system.gpus[0].load_throttle = 0;
  system.gpus[0].load_clock_mhz = 1980;
  system.peers = {{Peer::self, Peer::nvlink}, {Peer::nvlink, Peer::self}};

  facts.cuda = {true, 13000, 2, ""};
  facts.libraries = {{"OpenBLAS", "linked", "", "OpenBLAS 0.3.26", "CPU matrix products", true},
                     {"cuDNN", "", "off", std::nullopt, "cudnn rows", false}};
  facts.ceilings = {{"matmul_fp32_tflops", 53.05, 67.0},
                    {"matmul_16bit_tflops", 811.9, 989.5},
                    {"copy_gbps", 4282.0, 4800.0},
                    {"read_gbps", 4570.5, 4800.0}};
  facts.datasheet = DatasheetFacts{"NVIDIA H200", "NVIDIA H200 datasheet"};
  return facts;
}

/// The same host without GPUs, its CPU measured.
[[nodiscard]] inline Facts healthy_cpu_machine() {
  Facts facts = healthy_gpu_machine();
  facts.device = "cpu";
  facts.gpu_system = {};
  facts.gpu_system.failure = "libnvidia-ml.so.1: cannot open shared object file";
  facts.cuda = {false, std::nullopt, 0, "built without CUDA"};
  facts.build.cuda.clear();
  facts.host.nvidia_device = false;
  facts.ceilings = {{"matmul_fp32_tflops", 1.6, 1.9456}, {"copy_gbps", 180.0, std::nullopt}};
  facts.datasheet = DatasheetFacts{"8 cores x 3800 MHz x 64 FLOPs a cycle (avx512)", "highest clock by the driver"};
  return facts;
}

}  // namespace warpmeter::harness::doctor
