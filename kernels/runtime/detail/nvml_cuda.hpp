#pragma once

#include <string>

namespace warpmeter::detail {

/// What the management library alone knows of a GPU. Fields stay empty or 0 where it is not there or does not say.
struct NvmlFacts {
  std::string driver;   ///< "580.159.04"
  bool is_mig = false;  ///< the UUID names a slice of a GPU
  int clock_mhz = 0;    ///< SM clock now
  int max_clock_mhz = 0;
  int memory_clock_mhz = 0;
};

/// Asks libnvidia-ml.so.1, loaded at the first call. The GPU is named by UUID (8-4-4-4-12 hexadecimal digits, without
/// prefix), then by PCI bus id: NVML's indices are not CUDA's.
[[nodiscard]] NvmlFacts nvml_facts(const std::string& uuid, const std::string& pci_bus_id);

}  // namespace warpmeter::detail
