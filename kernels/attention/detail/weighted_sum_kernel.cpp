// Compiled once an instruction set (isa_vec.hpp says what that forbids).
#include "kernels/attention/detail/weighted_sum.hpp"
#include "kernels/runtime/isa_vec.hpp"

namespace warpmeter::attention::detail::WM_ISA {

namespace {

constexpr std::int64_t kDoubles = warpmeter::vec::WM_ISA::kWidth / 2;
using DoubleVec = double __attribute__((vector_size(kDoubles * 8)));

/// kVectors vectors of columns, held in registers over all rows.
template <int kVectors>
WM_INLINE void columns_at_once(const double* weights, const double* matrix, std::int64_t stride, std::int64_t rows,
                               double* out) {
  DoubleVec sum[kVectors] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* row = matrix + r * stride;
    for (int u = 0; u < kVectors; ++u) {
      DoubleVec v;
      __builtin_memcpy(&v, row + u * kDoubles, sizeof(v));
      sum[u] += weights[r] * v;
    }
  }
  __builtin_memcpy(out, sum, sizeof(sum));
}

void run(const double* weights, const double* matrix, std::int64_t stride, std::int64_t rows, double* out,
         std::int64_t columns) {
  std::int64_t j = 0;
  for (; j + 8 * kDoubles <= columns; j += 8 * kDoubles) {
    columns_at_once<8>(weights, matrix + j, stride, rows, out + j);
  }
  for (; j + kDoubles <= columns; j += kDoubles) columns_at_once<1>(weights, matrix + j, stride, rows, out + j);
  for (; j < columns; ++j) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += weights[r] * matrix[r * stride + j];
    out[j] = sum;
  }
}

}  // namespace

WeightedSum weighted_sum_kernel() {
  return run;
}

}  // namespace warpmeter::attention::detail::WM_ISA
