#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

/// What a manufacturer says that a device does at best: dense matrices (no structured sparsity), 16-bit products summed
/// in fp32, at the boost clock. Beside measured ceilings these are data to compare with, never the base of a share in a
/// result.
///
/// Sources, all by NVIDIA; their figures "with sparsity" are halved here:
///   A100            A100 Tensor Core GPU datasheet (June 2021)
///   H100            H100 Tensor Core GPU datasheet: SXM, PCIe (first edition), NVL (per GPU)
///   H200            H200 Tensor Core GPU datasheet: SXM, NVL
///   L40S            L40S datasheet
///   RTX 3090        Ampere GA102 GPU architecture whitepaper
///   RTX 4090        Ada GPU architecture whitepaper
///   RTX 5090        RTX Blackwell GPU architecture whitepaper
///   B200            HGX B200 datasheet, an eighth of the board
struct DatasheetEntry {
  std::string_view name;  ///< as CUDA and NVML spell it, the whole of it: "RTX 4090 D" is another GPU
  double fp32_tflops, tf32_tflops, half_tflops, memory_gbps;
  std::string_view source;
};

/// Null for a GPU that the table does not have.
[[nodiscard]] const DatasheetEntry* find_datasheet(std::string_view gpu_name);

/// fp32 FLOPs a cycle of one core with the instruction set in use: lanes x 2 (a fused multiply-add) x units. None for
/// a processor that the table does not have, and for hybrid ones, whose cores differ.
///   Intel: Intel 64 and IA-32 Architectures Optimization Reference Manual (two FMA ports; on servers two of 512 bits).
///   AMD: Software Optimization Guides for families 17h, 19h and 1Ah (two FMA pipes; Zen 4 splits 512 bits in two).
[[nodiscard]] std::optional<double> flops_per_cycle(const HostFacts& host);

/// cores x clock x FLOPs a cycle; none where one of them is unknown. The clock is the frequency driver's highest, else
/// that of /proc/cpuinfo.
[[nodiscard]] std::optional<double> cpu_peak_tflops(const HostFacts& host);

/// Puts the datasheet's figure beside each measured one and says where it is from. `gpu_name` empty: the CPU.
void add_datasheet(Facts& facts, std::string_view gpu_name);

}  // namespace warpmeter::harness::doctor
