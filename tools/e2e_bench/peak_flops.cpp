#include "tools/e2e_bench/peak_flops.hpp"

#include <cmath>

#include "tools/harness/doctor/datasheet.hpp"

namespace warpmeter::e2e_bench {

std::optional<PeakFlops> peak_flops(const Configuration& configuration, harness::Session& session) {
  const bool cuda = session.settings().device.is_cuda();
  const DType compute = configuration.precision.compute;
  if (cuda) {
    if (const auto* entry = harness::doctor::find_datasheet(session.device_properties().name)) {
      const double tflops = is_16bit(compute)        ? entry->half_tflops
                            : compute == DType::tf32 ? entry->tf32_tflops
                                                     : entry->fp32_tflops;
      return PeakFlops{tflops, std::string(entry->source)};
    }
  }
  // Measuring takes seconds.
  if (!session.settings().wide) return std::nullopt;
  // The CPU multiplies in fp32 whatever the storage.
  const ComputePath path = cuda && is_16bit(compute)        ? ComputePath::half
                           : cuda && compute == DType::tf32 ? ComputePath::tf32
                                                            : ComputePath::fp32;
  const double measured = session.ceilings().matmul_tflops(path);
  if (!std::isfinite(measured) || measured <= 0) return std::nullopt;
  return PeakFlops{measured, "measured matmul"};
}

}  // namespace warpmeter::e2e_bench
