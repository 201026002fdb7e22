#pragma once

#include <cstdint>

#include "kernels/ptx/math.cuh"

/// The online softmax over accumulators of warpgroup products (layout: ptx/wgmma.cuh): a thread has two rows, r = 0 and
/// 1, of which three neighbours hold the rest.
namespace warpmeter::attention::flash_sm90 {

/// Running maximum (of unscaled scores) and sum of a thread's rows; the sum is this thread's part only.
struct RowState {
  float max[2];
  float sum[2];
  bool large;  ///< the same for a warp: some maximum is too large for its product with the scale to be subtracted

  __device__ __forceinline__ void reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    large = false;
  }
};

/// Of four neighbouring threads.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// Scores at and behind `limit[r]` become -inf; limits count from the thread's own first column. As bits, 8 of which go
/// to predicate registers in one instruction (R2P): half as many instructions as a comparison each.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], const int (&limit)[2]) {
  constexpr int kRowCount = kCount / 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int seen = 2 * (limit[r] >> 3) + min(limit[r] & 7, 2);  // two columns of every eight are the thread's
#pragma unroll
    for (int first = 0; first < kRowCount; first += 32) {
      const std::uint32_t bits = ptx::low_bits(max(0, min(seen - first, 32)));
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const std::uint32_t part = bits >> (8 * byte);
#pragma unroll
        for (int bit = 0; bit < 8; ++bit) {
          const int column = first + 8 * byte + bit, i = column / 2 * 4 + 2 * r + column % 2;
          if (column < kRowCount) s[i] = (part & (1u << bit)) != 0 ? s[i] : -INFINITY;
        }
      }
    }
  }
}

/// s becomes exp2(scale_log2 * (s - maximum)) and state takes the new block in. The maximum of a row follows the true
/// one only when that has grown by more than 2^8: until then exponentials up to 256 are as exact, and nothing summed
/// before has to be touched. Returns whether some row of this warp moved; `rescale` then says by what O must be
/// multiplied. `kMasked`: rows may have seen nothing yet.
template <bool kMasked, int kCount>
__device__ __forceinline__ bool softmax_step(float (&s)[kCount], RowState& state, float (&rescale)[2],
                                             float scale_log2) {
  constexpr float kSlack = 8.0f, kLargeLog2 = 64.0f;
  float largest[2];
  bool moved = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Two chains of maxima: a single one would wait for itself.
    float low = s[2 * r], high = s[2 * r + 1];
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      low = fmaxf(low, s[i + 2 * r]);
      high = fmaxf(high, s[i + 2 * r + 1]);
    }
    largest[r] = quad_max(fmaxf(low, high));
    moved = moved || (largest[r] - state.max[r]) * scale_log2 > kSlack;  // from -inf too; -inf - -inf is no move
  }
  moved = __any_sync(0xffffffffu, moved);
  if (moved) {
    bool large = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = fmaxf(state.max[r], largest[r]);
      // A row that has seen nothing has a sum of 0 and a product of 0, and any finite factor will do.
      const float finite = maximum == -INFINITY ? 0.0f : maximum;
      rescale[r] = ptx::exp2_approx(__fmul_rn(__fsub_rn(state.max[r], finite), scale_log2));
      state.max[r] = maximum;
      state.sum[r] *= rescale[r];
      large = large || fabsf(finite * scale_log2) > kLargeLog2;
    }
    state.large = __any_sync(0xffffffffu, large);
  }
  if (state.large) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float finite = kMasked && state.max[r] == -INFINITY ? 0.0f : state.max[r];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        s[i + 2 * r] = __fmul_rn(__fsub_rn(s[i + 2 * r], finite), scale_log2);
        s[i + 2 * r + 1] = __fmul_rn(__fsub_rn(s[i + 2 * r + 1], finite), scale_log2);
      }
    }
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float shift = __fmul_rn(kMasked && state.max[r] == -INFINITY ? 0.0f : state.max[r], scale_log2);
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        s[i + 2 * r] = __fmaf_rn(s[i + 2 * r], scale_log2, -shift);
        s[i + 2 * r + 1] = __fmaf_rn(s[i + 2 * r + 1], scale_log2, -shift);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum_low = 0, sum_high = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      s[i + 2 * r] = ptx::exp2_approx(s[i + 2 * r]);
      s[i + 2 * r + 1] = ptx::exp2_approx(s[i + 2 * r + 1]);
      sum_low += s[i + 2 * r];
      sum_high += s[i + 2 * r + 1];
    }
    state.sum[r] += sum_low + sum_high;
  }
  return moved;
}

template <int kCount>
__device__ __forceinline__ void rescale_rows(float (&o)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= factor[i % 4 / 2];
}

/// fp32 probabilities as the A operand of P V: 16 columns are four registers.
template <class T, int kCount>
__device__ __forceinline__ void pack_probabilities(const float (&s)[kCount], std::uint32_t (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = ptx::pack2<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace warpmeter::attention::flash_sm90
