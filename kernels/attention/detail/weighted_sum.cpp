#include "kernels/attention/detail/weighted_sum.hpp"

#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::attention::detail {

namespace {

WeightedSum choose() {
#if defined(__x86_64__)
  switch (cpu_isa()) {
    case CpuIsa::avx512:
      return avx512::weighted_sum_kernel();
    case CpuIsa::avx2:
      return avx2::weighted_sum_kernel();
    case CpuIsa::generic:
      break;
  }
#endif
  return generic::weighted_sum_kernel();
}

}  // namespace

void weighted_sum(const double* weights, const double* matrix, std::int64_t stride, std::int64_t rows, double* out,
                  std::int64_t columns) {
  static const WeightedSum chosen = choose();
  chosen(weights, matrix, stride, rows, out, columns);
}

}  // namespace warpmeter::attention::detail
