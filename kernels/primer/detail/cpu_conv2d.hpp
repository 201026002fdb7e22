#pragma once

#include "kernels/primer/detail/cpu.hpp"

/// conv2d on the CPU: four rows of results at a time, so that a vector of x serves all of them that it is in reach of.
namespace warpmeter::primer::cpu_tools::WM_ISA {

constexpr int kRowsAtOnce = 4;

/// x, z: the first of up to four rows of results, `below` rows from there to the picture's end; w: weights as floats.
template <class T>
WM_INLINE void convolve(const Problem& p, const T* x, const float* w, T* z, std::int64_t below, bool past_cache) {
  const std::int64_t size = p.kernel_size, lines = kRowsAtOnce - 1 + size < below ? kRowsAtOnce - 1 + size : below;
  Vec of_3x3[9];
  for (int n = 0; n < 9; ++n) of_3x3[n] = broadcast(size == 3 ? w[n] : 0.0f);
  const auto results = [&](std::int64_t i, std::int64_t, Vec(&sums)[kRowsAtOnce]) WM_INLINE_LAMBDA {
    if (size == 3 && lines == kRowsAtOnce + 2 && p.cols - i >= 2 * kWidth) {  // the common size, and all is there
#pragma GCC unroll 6
      for (int line = 0; line < kRowsAtOnce + 2; ++line) {
        const Vec here = load(x + i + line * p.cols), behind = load(x + i + line * p.cols + kWidth);
        const Vec next = __builtin_shuffle(here, behind, lane_index() + 1);
        const Vec second = __builtin_shuffle(here, behind, lane_index() + 2);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (line < r || line > r + 2) continue;
          const Vec* const weights = of_3x3 + 3 * (line - r);
          sums[r] = fma(here, weights[0], fma(next, weights[1], fma(second, weights[2], sums[r])));
        }
      }
      return;
    }
    for (std::int64_t line = 0; line < lines; ++line)
      for (std::int64_t dj = 0; dj < size && i + dj < p.cols; ++dj) {
        const Vec values = load_some(x + i + line * p.cols + dj, p.cols - i - dj);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsAtOnce; ++r)
          if (line >= r && line < r + size) sums[r] = fma(values, broadcast(w[(line - r) * size + dj]), sums[r]);
      }
  };
  write_rows<kRowsAtOnce>(z, below, p.cols, p.cols, past_cache, results);
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
