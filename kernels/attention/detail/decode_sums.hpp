#pragma once

#include "kernels/attention/detail/flash_micro.hpp"

namespace warpmeter::attention::WM_ISA {

/// Lanes of `a` whose index lacks the bit `step`, those of `b` where it has it.
template <int step>
WM_INLINE Vec blend(Vec a, Vec b) {
#if defined(WM_ISA_avx512)  // GCC 12 takes a shuffle for some of these
  constexpr int kMask = step == 8 ? 0xFF00 : step == 4 ? 0xF0F0 : step == 2 ? 0xCCCC : 0xAAAA;
  return _mm512_mask_blend_ps(kMask, a, b);
#else
  IntVec from{};
  for (int j = 0; j < kWidth; ++j) from[j] = (j & step) == 0 ? j : kWidth + j;
  return __builtin_shuffle(a, b, from);
#endif
}

/// Lane i becomes the sum of vector i's lanes.
///
/// Of two vectors one has its lower halves, the other its upper ones to be moved: what stays where it is is a blend,
/// which more of a core's pipes do than a shuffle.
template <int step = kWidth / 2>
WM_INLINE Vec sums_of(Vec (&v)[kWidth]) {
  if constexpr (step > 0) {
    IntVec move{};
#pragma GCC unroll 16
    for (int j = 0; j < kWidth; ++j) move[j] = (j & step) == 0 ? j + step : kWidth + j - step;
#pragma GCC unroll 16
    for (int i = 0; i < step; ++i) v[i] = blend<step>(v[i], v[i + step]) + __builtin_shuffle(v[i], v[i + step], move);
    return sums_of<step / 2>(v);
  } else {
    return v[0];
  }
}

}  // namespace warpmeter::attention::WM_ISA
