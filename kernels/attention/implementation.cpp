#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

ComputePath Implementation::compute_path(const AttentionProblem& problem, Pass /*pass*/) const {
  if (device_kind() == DeviceKind::cpu) return ComputePath::fp32;
  if (is_16bit(problem.dtype)) return ComputePath::half;
  return problem.dtype == DType::tf32 ? ComputePath::tf32 : ComputePath::fp32;
}

}  // namespace warpmeter::attention
