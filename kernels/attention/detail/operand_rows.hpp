#pragma once

#include <cstdint>

#include "kernels/attention/problem.hpp"

namespace warpmeter::attention {

/// Whether every row of the operand starts on a 16-byte boundary, whatever its head dim.
template <class Pointer>
[[nodiscard]] bool rows_aligned(const BasicOperand<Pointer>& operand, const AttentionProblem& problem) {
  const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const auto aligned = [&](std::int64_t stride, std::int64_t count) { return count == 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && aligned(operand.batch_stride, problem.batch) &&
         aligned(operand.head_stride, problem.num_heads) && aligned(operand.row_stride, 2);
}

}  // namespace warpmeter::attention
