#pragma once

#include <cstdint>

namespace warpmeter::attention::detail {

/// out[j] = sum over r in [0, rows) of weights[r] * matrix[r * stride + j], for j in [0, columns): the one loop that
/// the fp64 reference spends its time in.
void weighted_sum(const double* weights, const double* matrix, std::int64_t stride, std::int64_t rows, double* out,
                  std::int64_t columns);

// The variants that weighted_sum.cpp chooses from; weighted_sum_kernel.cpp makes them.
using WeightedSum = decltype(&weighted_sum);
namespace generic {
WeightedSum weighted_sum_kernel();
}
namespace avx2 {
WeightedSum weighted_sum_kernel();
}
namespace avx512 {
WeightedSum weighted_sum_kernel();
}

}  // namespace warpmeter::attention::detail
