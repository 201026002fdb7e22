#pragma once

#include "kernels/attention/gemm.hpp"

namespace warpmeter::attention::detail {

/// How gemm_cpu() cuts C into panels of rows. `rows` decides the result's last bits.
struct GemmPlan {
  std::int64_t rows = 0;  ///< of a panel, kMaxGemmPanel at most
  bool blocks = false;    ///< a panel in blocks small enough that the BLAS packs nothing, not in one piece
};

/// What gemm_cpu() takes for `problem`, by its shape and the instruction set.
[[nodiscard]] GemmPlan gemm_plan(const GemmProblem& problem);

/// gemm_cpu() with a plan of the caller's.
void gemm_cpu(const GemmPlan& plan, const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c);

}  // namespace warpmeter::attention::detail
