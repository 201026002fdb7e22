#pragma once

#include "kernels/primer/detail/cpu.hpp"

/// weighted_sum_backward on the CPU: some rows at a time, for which w and the sums of dw are loaded once.
namespace warpmeter::primer::cpu_tools::WM_ISA {

constexpr int kGradientRows = 4;

/// Up to kGradientRows rows, `stride` elements apart, for write_rows: dx = w * g; and x * g comes on top of `sums`, or
/// in their place for the `first` rows.
template <class T>
class GradientRows {
 public:
  WM_INLINE GradientRows(const T* x, std::int64_t stride, const T* w, const T* g, std::int64_t rows, float* sums,
                         bool first)
      : x_(x), w_(w), stride_(stride), rows_(rows), sums_(sums), first_(first) {
    for (int r = 0; r < rows; ++r) factors_[r] = broadcast(to_float(g[r]));
  }

  WM_INLINE void operator()(Run run, Vec (&dx)[kGradientRows]) const {
    add_up(run);
    scale(run.load(w_), dx);
  }

  /// The sums are in order even so.
  template <int kOdd>
  WM_INLINE void operator()(EverySecond<kOdd> elements, Vec (&dx)[kGradientRows]) const {
    add_up({elements.i + kOdd * kWidth, kWidth});
    scale(elements.load(w_), dx);
  }

 private:
  WM_INLINE void scale(Vec weights, Vec (&dx)[kGradientRows]) const {
    for (int r = 0; r < kGradientRows; ++r) dx[r] = weights * factors_[r];
  }
  WM_INLINE void add_up(Run run) const {
    Vec sum = first_ ? Vec{} : run.load(sums_);
    for (int r = 0; r < kGradientRows && r < rows_; ++r) sum = fma(run.load(x_ + r * stride_), factors_[r], sum);
    run.count == kWidth ? store(sums_ + run.i, sum) : store_partial(sums_ + run.i, sum, run.count);
  }

  const T *x_, *w_;
  std::int64_t stride_, rows_;
  float* sums_;
  bool first_;
  Vec factors_[kGradientRows] = {};
};

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
