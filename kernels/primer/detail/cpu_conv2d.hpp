#pragma once

#include "kernels/primer/detail/cpu.hpp"

/// conv2d on the CPU: some rows of results at a time, so that a vector of x serves all of them that it is in reach of,
/// while lines of the next rows are asked for.
namespace warpmeter::primer::cpu_tools::WM_ISA {

#if defined(WM_ISA_avx512)
constexpr int kRowsAtOnce = 6;
#else  // half as many registers
constexpr int kRowsAtOnce = 4;
#endif

/// Up to kRowsAtOnce rows of results, `below` rows from the first to the picture's end. x: where they begin; w: weights
/// as floats.
template <class T>
class Convolution {
 public:
  WM_INLINE Convolution(const Problem& p, const T* x, const float* w, std::int64_t below)
      : p_(p), x_(x), w_(w), lines_(kMost + p.kernel_size - 3 < below ? kMost + p.kernel_size - 3 : below) {
    for (int n = 0; n < 9; ++n) of_3x3_[n] = broadcast(p.kernel_size == 3 ? w[n] : 0.0f);
  }

  /// Whether pairs(i) has all that it reads, and the kernel is of the common size.
  [[nodiscard]] WM_INLINE bool has_pairs(std::int64_t i) const {
    return is_3x3() && lines_ == kMost && p_.cols - i >= 2 * kWidth + 2;
  }

  /// Sums of bf16 at i, i + 2, ... and at i + 1, i + 3, ...: no element has to change its lane for either.
  WM_INLINE void pairs(std::int64_t i, Vec (&even)[kRowsAtOnce], Vec (&odd)[kRowsAtOnce]) const {
#pragma GCC unroll 8
    for (int line = 0; line < kMost; ++line) {
      if (line < kRowsAtOnce) ask_for(x_ + i + (kMost + line) * p_.cols);
      Vec here[2], next[2];
      widen_pairs(x_ + i + line * p_.cols, here);
      widen_pairs(x_ + i + line * p_.cols + 2, next);
#pragma GCC unroll 8
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (line < r || line > r + 2) continue;
        const Vec* const w = of_3x3_ + 3 * (line - r);
        even[r] = fma(here[0], w[0], fma(here[1], w[1], fma(next[0], w[2], even[r])));
        odd[r] = fma(here[1], w[0], fma(next[0], w[1], fma(next[1], w[2], odd[r])));
      }
    }
  }

  /// Sums at i, i + 1, ...
  WM_INLINE void operator()(Run run, Vec (&sums)[kRowsAtOnce]) const {
    const std::int64_t i = run.i;
    if (is_3x3() && p_.cols - i >= 2 * kWidth) {
#pragma GCC unroll 8
      for (int line = 0; line < kMost; ++line) {
        if (line >= lines_) break;
        const T* const x = x_ + i + line * p_.cols;
        if (line < kRowsAtOnce) ask_for(x + kMost * p_.cols);
        const Vec here = load(x);
        Vec next, second;
        if constexpr (std::is_same_v<T, Fp16>) {  // loads convert; shuffles would take the multipliers' place
          next = load(x + 1);
          second = load(x + 2);
        } else {
          const Vec behind = load(x + kWidth);
          next = __builtin_shuffle(here, behind, lane_index() + 1);
          second = __builtin_shuffle(here, behind, lane_index() + 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (line < r || line > r + 2) continue;
          const Vec* const w = of_3x3_ + 3 * (line - r);
          sums[r] = fma(here, w[0], fma(next, w[1], fma(second, w[2], sums[r])));
        }
      }
      return;
    }
    const std::int64_t size = p_.kernel_size;
    for (std::int64_t line = 0; line < lines_; ++line)
      for (std::int64_t dj = 0; dj < size && i + dj < p_.cols; ++dj) {
        const Vec values = load_some(x_ + i + line * p_.cols + dj, p_.cols - i - dj);
#pragma GCC unroll 8
        for (int r = 0; r < kRowsAtOnce; ++r)
          if (line >= r && line < r + size) sums[r] = fma(values, broadcast(w_[(line - r) * size + dj]), sums[r]);
      }
  }

 private:
  static constexpr int kMost = kRowsAtOnce + 2;  // lines in reach of a 3x3 kernel

  [[nodiscard]] WM_INLINE bool is_3x3() const {
    return p_.kernel_size == 3;
  }

  const Problem& p_;
  const T* x_;
  const float* w_;
  std::int64_t lines_;
  Vec of_3x3_[9];
};

/// x, z: the first of up to kRowsAtOnce rows, `below` rows from there to the picture's end; w: weights as floats.
template <class T>
WM_INLINE void convolve(const Problem& p, const T* x, const float* w, T* z, std::int64_t below, bool past_cache) {
  write_rows<kRowsAtOnce>(z, below, p.cols, p.cols, past_cache, Convolution<T>(p, x, w, below));
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
