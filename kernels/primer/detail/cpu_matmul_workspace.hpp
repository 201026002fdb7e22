#pragma once

#include <cstddef>

#include "kernels/primer/kernel.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::primer {

inline constexpr int kStripCols = 64;  ///< columns of y that a thread of cpu_matmul packs at a time
inline constexpr int kMostRows = 12;   ///< rows of a that it multiplies at a time, at most

/// Scratch memory of cpu_matmul; none on other devices.
inline std::size_t cpu_matmul_workspace(const Problem& p, Device device) {
  if (!device.is_cpu()) return 0;
  return static_cast<std::size_t>(num_threads()) * static_cast<std::size_t>(p.inner * (kStripCols + kMostRows)) *
         sizeof(float);
}

}  // namespace warpmeter::primer
