#pragma once

#include <string>

#include "kernels/primer/kernel.hpp"

namespace warpmeter::primer {

struct CheckReport {
  double max_rel_error = 0;  ///< largest |result - reference| / largest |reference|, of the worst output
  bool sampled = false;      ///< of some elements only: the reference takes too long for all
  std::string failure;       ///< what is wrong, with the worst element; empty when nothing is
};

/// Holds results against the kernel's fp64 reference. All are on the host.
///
/// fp32: an error up to 1e-5 of the largest reference. 16 bits: the sums are fp32, so half a unit of the result's own
/// last place more (2^-25 at least in fp16, whose smallest numbers are further apart); a matrix product, whose factors
/// may have been rounded as well, another unit roundoff of the largest. No result may be NaN or infinite, of all,
/// whatever is compared: outputs are poisoned before a checked run.
///
/// `most_steps` bounds the work: above it, elements spread over the whole output are compared, the first and the last
/// among them.
[[nodiscard]] CheckReport check(const Kernel& kernel, const Problem& problem, const HostTensors& in,
                                const HostTensors& out, double most_steps = 1e8);

}  // namespace warpmeter::primer
