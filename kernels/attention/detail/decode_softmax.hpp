#pragma once

#include "kernels/attention/detail/flash_micro.hpp"

/// Scores to probabilities in the CPU's flash decoding: the running maximum and sum of each query row move on. Included
/// by one file an instruction set.
namespace warpmeter::attention::WM_ISA {

inline constexpr float kMinusInfinity = -__builtin_inff();
/// Rows of S^T are this far apart: off the powers of two, which would fall into few cache sets.
inline constexpr Index kScoreStride = kPanel + kWidth;

WM_INLINE bool any(IntVec lanes) {
  std::int32_t all = 0;
  for (int i = 0; i < kWidth; ++i) all |= lanes[i];
  return all != 0;
}

/// A row of scores, keys in the lanes: its probabilities with the running maximum and sum moved on, lanes from `seen`
/// up to `end` (whole vectors) made 0. Returns what the row's o is to be multiplied by.
[[gnu::noinline]] inline float softmax_row(float* scores, Index seen, Index end, float factor, float* maximum,
                                           float* sum) {
  const Index whole = seen / kWidth * kWidth;
  Vec top = broadcast(*maximum);
  for (Index i = 0; i < whole; i += kWidth) top = max(top, load(scores + i));
  if (whole < seen) {
    const IntVec lanes = lane_index() < broadcast_int(static_cast<std::int32_t>(seen - whole));
    const Vec rest = lanes ? load(scores + whole) : broadcast(kMinusInfinity);
    store(scores + whole, rest);
    top = max(top, rest);
  }
  float highest = reduce_max(top);
  if (highest == kMinusInfinity) {
    // A maximum forgets a NaN for the -inf that it meets next.
    IntVec nan{};
    for (Index i = 0; i < seen; i += kWidth) nan |= load(scores + i) != load(scores + i);
    if (!any(nan)) {
      for (Index i = 0; i < end; i += kWidth) store(scores + i, Vec{});
      return 1;
    }
    highest = __builtin_nanf("");
  }
  const float shrink = exp2_probability(broadcast((*maximum - highest) * factor))[0];
  Vec total{};
  Index i = 0;
  for (; i < seen; i += kWidth) {
    const Vec p = exp2_probability((load(scores + i) - highest) * factor);
    total += p;
    store(scores + i, p);
  }
  for (; i < end; i += kWidth) store(scores + i, Vec{});
  *maximum = highest;
  *sum = *sum * shrink + reduce_add(total);
  return shrink;
}

/// S^T of a panel to P^T, lane by lane: maximum, sum and correction of its rows moved on. visible[lane] keys of the
/// block are seen; from `seen_by_all` on lanes differ.
[[gnu::noinline]] inline void softmax_panel(float* scores, Index keys, Index seen_by_all, const std::int32_t* visible,
                                            Index vectors, float factor, float* maximum, float* sum,
                                            float* correction) {
  for (Index v = 0; v < vectors; ++v) {
    float* const column = scores + v * kWidth;
    const Vec before = load(maximum + v * kWidth);
    Vec top = before;
    Index key = 0;
    for (; key < seen_by_all; ++key) top = max(top, load(column + key * kScoreStride));
    if (key < keys) {
      IntVec seen;
      __builtin_memcpy(&seen, visible + v * kWidth, sizeof(seen));
      for (; key < keys; ++key) {
        float* const at = column + key * kScoreStride;
        const Vec s = broadcast_int(static_cast<std::int32_t>(key)) < seen ? load(at) : broadcast(kMinusInfinity);
        store(at, s);
        top = max(top, s);
      }
    }
    const Vec highest = top == broadcast(kMinusInfinity) ? Vec{} : top;  // nothing seen yet: -inf - 0
    const Vec shrink = exp2_probability((before - highest) * factor);
    Vec total{};
    for (key = 0; key < keys; ++key) {
      float* const at = column + key * kScoreStride;
      const Vec p = exp2_probability((load(at) - highest) * factor);
      total += p;
      store(at, p);
    }
    store(maximum + v * kWidth, top);
    store(sum + v * kWidth, fma(load(sum + v * kWidth), shrink, total));
    store(correction + v * kWidth, shrink);
  }
}

}  // namespace warpmeter::attention::WM_ISA
