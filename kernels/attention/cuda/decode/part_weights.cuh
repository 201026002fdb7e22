#pragma once

#include "kernels/attention/cuda/decode/common.cuh"

/// merge.hpp's formulas for one query row, by one warp: what each part's o is multiplied by.
namespace warpmeter::attention::cuda_decode {

/// A sum of floats with what its rounding left behind.
struct Pair {
  float sum, rest;
};
__device__ __forceinline__ Pair add(float a, float b) {
  const float sum = __fadd_rn(a, b);
  const float other = __fsub_rn(sum, a);
  return {sum, __fadd_rn(__fsub_rn(a, __fsub_rn(sum, other)), __fsub_rn(b, other))};
}

/// S = m * scale + ln l, two floats long.
__device__ __forceinline__ Pair lse_of(float m, float l, float scale) {
  const float product = __fmul_rn(m, scale);
  Pair s = add(product, logf(l));
  s.rest = __fadd_rn(s.rest, fmaf(m, scale, -product));
  return s;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

/// Part 32 j + lane has m[j] and l[j], or -inf and 0 where there is none; its weight goes to weight[j], so that
/// O = sum of weight x o. Uses m and l up. Returns LSE, in the lanes of parts alone. The same bits on every run.
template <int kRegisters>
__device__ __forceinline__ float part_weights(MergeKind merge, int parts, float scale, float (&m)[kRegisters],
                                              float (&l)[kRegisters], float (&weight)[kRegisters]) {
  const int lane = threadIdx.x % 32;
  const float factor = scale * kLog2e;
  if (merge == MergeKind::tree) {
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) weight[j] = 1;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      if (distance >= parts) break;
      const bool is_right = (lane & distance) != 0;
#pragma unroll
      for (int j = 0; j < kRegisters; ++j) {
        const float other_m = __shfl_xor_sync(0xffffffffu, m[j], distance);
        const float other_l = __shfl_xor_sync(0xffffffffu, l[j], distance);
        const float top = fmaxf(m[j], other_m);
        const float own = weight_of(m[j], top, factor);
        const float other = weight_of(other_m, top, factor);
        weight[j] *= own;
        const float mine = __fmul_rn(own, l[j]), others = __fmul_rn(other, other_l);
        l[j] = is_right ? __fadd_rn(others, mine) : __fadd_rn(mine, others);
        m[j] = top;
      }
    }
#pragma unroll
    for (int distance = 1; distance < kRegisters; distance *= 2) {
#pragma unroll
      for (int left = 0; left < kRegisters; left += 2 * distance) {
        const int right = left + distance;
        const float top = fmaxf(m[left], m[right]);
        const float of_left = weight_of(m[left], top, factor);
        const float of_right = weight_of(m[right], top, factor);
#pragma unroll
        for (int j = 0; j < distance; ++j) {
          weight[left + j] *= of_left;
          weight[right + j] *= of_right;
        }
        l[left] = __fadd_rn(__fmul_rn(of_left, l[left]), __fmul_rn(of_right, l[right]));
        m[left] = top;
      }
    }
    const float inverse = l[0] == 0 ? 0.0f : 1 / l[0];
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) weight[j] *= inverse;
    return l[0] == 0 ? kMinusInfinity : m[0] * scale + logf(l[0]);
  }
  if (merge == MergeKind::lse) {
    float top = kMinusInfinity;
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) {
      const Pair s = l[j] == 0 ? Pair{kMinusInfinity, 0} : lse_of(m[j], l[j], scale);
      m[j] = s.sum;
      weight[j] = s.rest;
      top = fmaxf(top, s.sum);
    }
    top = warp_max(top);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) {
      weight[j] = m[j] == kMinusInfinity ? 0.0f : exp2f(((m[j] - top) + weight[j]) * kLog2e);
      sum += weight[j];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) weight[j] = l[j] == 0 ? 0.0f : weight[j] / (sum * l[j]);
    return sum == 0 ? kMinusInfinity : top + logf(sum);  // a NaN stays one
  }
  float top = kMinusInfinity;
#pragma unroll
  for (int j = 0; j < kRegisters; ++j) top = fmaxf(top, m[j]);
  top = warp_max(top);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kRegisters; ++j) {
    weight[j] = weight_of(m[j], top, factor);
    sum += weight[j] * l[j];
  }
  sum = warp_sum(sum);
  const float inverse = sum == 0 ? 0.0f : 1 / sum;
#pragma unroll
  for (int j = 0; j < kRegisters; ++j) weight[j] *= inverse;
  return sum == 0 ? kMinusInfinity : top * scale + logf(sum);
}

}  // namespace warpmeter::attention::cuda_decode
