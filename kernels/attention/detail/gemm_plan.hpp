#pragma once

#include "kernels/attention/gemm.hpp"

namespace warpmeter::attention::detail {

/// How gemm_cpu() cuts C into panels of rows and hands them out. `rows` decides the result's last bits, `deal` does
/// not.
struct GemmPlan {
  enum class Deal : std::uint8_t {
    in_order,  ///< in the order of memory, to each core the same panels whenever the shape is the same; fp32 only
    as_free,   ///< to whichever core comes free, the longest first
  };
  std::int64_t rows = 0;  ///< of a panel, kMaxGemmPanel at most
  Deal deal = Deal::as_free;
  bool blocks = false;  ///< a panel in blocks small enough that the BLAS packs nothing, not in one piece
};

/// What gemm_cpu() takes for `problem`, by its shape and the instruction set.
[[nodiscard]] GemmPlan gemm_plan(const GemmProblem& problem);

/// gemm_cpu() with a plan of the caller's.
void gemm_cpu(const GemmPlan& plan, const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c);

}  // namespace warpmeter::attention::detail
