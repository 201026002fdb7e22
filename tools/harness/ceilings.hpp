#pragma once

#include <optional>

#include "kernels/runtime/compute_path.hpp"
#include "kernels/runtime/context.hpp"
#include "reports/model.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness {

/// Rates of this device, each measured once a run when first asked for: TFLOP/s of a large square matmul on random data
/// for a compute path, GB/s (decimal) of a copy (bytes read plus bytes written) and of a read.
class Ceilings {
 public:
  Ceilings(const Context& context, const Settings& settings);
  ~Ceilings();
  [[nodiscard]] double matmul_tflops(ComputePath path);
  [[nodiscard]] double copy_gbps();
  [[nodiscard]] double read_gbps();
  /// Those measured so far: matmul_fp32_tflops, ..., copy_gbps, read_gbps.
  [[nodiscard]] reports::Object measured() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a phase did in its median time.
struct Work {
  double flops = 0;
  double bytes = 0;  ///< least bytes: inputs once, outputs once
  ComputePath path = ComputePath::fp32;
};

/// `fwd` gives fwd_flops, fwd_bytes, fwd_tflops, fwd_gbps, fwd_bound ("compute" or "memory": the larger of the two
/// least times) and fwd_bound_share (least time / measured time). A share above 1 returns a warning's text.
[[nodiscard]] std::optional<std::string> add_rates(reports::Object& figures, std::string_view phase, double median_ms,
                                                   const Work& work, Ceilings& ceilings);

}  // namespace warpmeter::harness
