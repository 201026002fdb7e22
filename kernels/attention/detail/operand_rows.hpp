#pragma once

#include <cstdint>
#include <cstring>

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

/// Zeros in the rows of o or dq (host memory) whose queries see nothing: what the products left there is P = 0 times V
/// or K, which is no zero where those are infinite.
inline void zero_unseeing_queries(const AttentionProblem& problem, const Operand& operand) {
  const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const std::int64_t rows = problem.unseeing_queries();
  for (std::int64_t b = 0; b < problem.batch && rows > 0; ++b) {
    for (std::int64_t h = 0; h < problem.num_heads; ++h) {
      char* const first =
          static_cast<char*>(operand.data) + (b * operand.batch_stride + h * operand.head_stride) * bytes;
      for (std::int64_t row = 0; row < rows; ++row) {
        std::memset(first + row * operand.row_stride * bytes, 0, static_cast<std::size_t>(problem.head_dim * bytes));
      }
    }
  }
}

}  // namespace warpmeter::attention
