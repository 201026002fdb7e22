#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/warp_tile.cuh"
#include "kernels/ptx/math.cuh"

namespace warpmeter::attention::flash_sm80 {

/// The running softmax of a warp's 16 kM rows: maximum of the raw scores, and each thread's part of the sum of
/// 2^(scale_log2 * (s - max)). The four threads of a row add their parts up once, at the end.
/// While no row's maximum has grown by more than 2^kSlackLog2 in exponentials, the old one stays: sums and O then hold
/// numbers up to 2^kSlackLog2, which costs no digits, and need no rescaling.
template <int kM>
class RowSoftmax {
 public:
  __device__ explicit RowSoftmax(float scale_log2) : scale_log2_(scale_log2) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max_[m][h] = -INFINITY;
        offset_[m][h] = 0.0f;
        sum_[m][h] = 0.0f;
      }
    }
  }

  /// Takes a tile's scores into the maximum and rescales sum and `o` to it. A row whose scores so far are all -inf
  /// keeps the offset 0: its exponentials are 2^-inf = 0, where -inf - -inf would be NaN.
  template <int kN, int kD>
  __device__ __forceinline__ void update_max(const float (&s)[kM][kN][4], float (&o)[kM][kD][4]) {
    float most[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = max_[m][h];
#pragma unroll
        for (int n = 0; n < kN; ++n) largest = fmaxf(largest, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        most[m][h] = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      }
    }
    bool grown = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // From -inf to a number is growth; from -inf to -inf is NaN here, hence none.
        grown = grown || (most[m][h] - max_[m][h]) * scale_log2_ > kSlackLog2;
      }
    }
    if (!__any_sync(0xffffffffu, grown)) return;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float largest = most[m][h];
        const float offset = largest == -INFINITY ? 0.0f : largest * scale_log2_;
        // By the offsets as they were rounded, which sum and O count from, not by the maxima.
        const float rescale = max_[m][h] == -INFINITY ? 0.0f : ptx::exp2_approx(offset_[m][h] - offset);
        max_[m][h] = largest;
        offset_[m][h] = offset;
        sum_[m][h] *= rescale;
#pragma unroll
        for (int d = 0; d < kD; ++d) {
          o[m][d][2 * h] *= rescale;
          o[m][d][2 * h + 1] *= rescale;
        }
      }
    }
  }

  /// P of column tiles n and n + 1, rounded to T, as the A operand of the product with V.
  template <class T, int kN>
  __device__ __forceinline__ void exponentials(const float (&s)[kM][kN][4], int n, std::uint32_t (&p)[kM][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float low = ptx::exp2_approx(fmaf(s[m][n + c][2 * h], scale_log2_, -offset_[m][h]));
          const float high = ptx::exp2_approx(fmaf(s[m][n + c][2 * h + 1], scale_log2_, -offset_[m][h]));
          sum_[m][h] += low + high;
          p[m][2 * c + h] = ptx::pack2<T>(low, high);
        }
      }
    }
  }

  /// The row's whole sum: every thread of the row must call it.
  __device__ __forceinline__ float total(int m, int h) const {
    float sum = sum_[m][h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
  }
  /// ln(sum of exponentials of the scaled scores) of a row whose whole sum is `sum`. What the offset lost in rounding
  /// is in the sum, and at scores of 1e4 as large as LSE's own rounding.
  __device__ __forceinline__ float lse(int m, int h, float sum, float scale) const {
    constexpr float kLn2 = 0.693147180559945309f;
    const float rest = fmaf(max_[m][h], scale_log2_, -offset_[m][h]);
    return sum == 0.0f ? -INFINITY : fmaf(max_[m][h], scale, fmaf(-rest, kLn2, logf(sum)));
  }

 private:
  static constexpr float kSlackLog2 = 8.0f;

  float scale_log2_;
  float max_[kM][2];
  float offset_[kM][2];
  float sum_[kM][2];
};

}  // namespace warpmeter::attention::flash_sm80
