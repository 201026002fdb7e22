#pragma once

#include <optional>
#include <string>

#include "tools/e2e_bench/configuration.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::e2e_bench {

/// What model FLOP utilization is a share of.
struct PeakFlops {
  double tflops;
  std::string source;  ///< "NVIDIA H200 datasheet", or "measured matmul"
};
/// The datasheet's dense figure of the precision's products for a GPU that is known, as MFU is quoted; else the
/// measured ceiling. None where neither is known.
[[nodiscard]] std::optional<PeakFlops> peak_flops(const Configuration& configuration, harness::Session& session);

}  // namespace warpmeter::e2e_bench
