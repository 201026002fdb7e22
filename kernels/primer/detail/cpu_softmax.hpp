#pragma once

#include "kernels/primer/detail/cpu.hpp"
#include "kernels/primer/detail/cpu_softmax_workspace.hpp"

/// softmax_one_read on the CPU. While a row is read and its exponentials are kept, the results of the row before it are
/// written: memory is busy both ways, as in a copy, and with arithmetic going on. Exponentials of a tile are relative
/// to the maximum so far, so that a row comes from memory once, and are corrected when they are written.
namespace warpmeter::primer::cpu_tools::WM_ISA {

/// A row whose exponentials are kept.
struct KeptRow {
  float* terms;    ///< exp(x - the maximum of its tile and those before)
  float* most_of;  ///< that maximum
  float most;      ///< of the whole row
  float sum;       ///< of exp(x - most)
};

/// exp(a - b) for a <= b.
WM_INLINE float shrunk(float a, float b) {
  constexpr float kLog2e = 1.44269504f;
  return exp2_not_positive<float>(broadcast((a - b) * kLog2e))[0];
}

/// Takes the n exponentials of a tile of x, and calls write(f): it is to write n results, and to call f for its places.
template <class T, class Write>
WM_INLINE void raise_tile(KeptRow& row, const T* x, std::int64_t first, std::int64_t n, Write&& write) {
  constexpr float kLog2e = 1.44269504f;
  const float of_tile = max_row(x + first, n), most = of_tile > row.most ? of_tile : row.most;
  Vec sums{};
  write([&](std::int64_t i, std::int64_t count) WM_INLINE_LAMBDA {
    const T* const here = x + first + i;
    ask_for(here + kSoftmaxTile);  // the next tile
    const Vec term = exp2_not_positive<T>((load_some(here, count) - most) * kLog2e);
    count < kWidth ? store_partial(row.terms + first + i, term, count) : store(row.terms + first + i, term);
    sums = sums + keep_lanes(term, count, 0.0f);
  });
  row.sum = row.sum * shrunk(row.most, most) + reduce_add(sums);
  row.most_of[first / kSoftmaxTile] = row.most = most;
}

/// Rows [begin, end) of x to y; kept: 2 * kept_floats(cols) floats; `least` is below every score.
template <class T>
WM_INLINE void softmax_rows(const T* x, T* y, std::int64_t begin, std::int64_t end, std::int64_t cols, float least,
                            float* kept, bool past_cache) {
  KeptRow now{kept, kept + cols, least, 0.0f},
      before{kept + kept_floats(cols), kept + kept_floats(cols) + cols, least, 0.0f};
  for (std::int64_t row = begin; row <= end; ++row) {
    const T* const of_row = x + row * cols;
    now.most = least;
    now.sum = 0.0f;
    for (std::int64_t first = 0; first < cols; first += kSoftmaxTile) {
      const std::int64_t n = cols - first < kSoftmaxTile ? cols - first : kSoftmaxTile;
      if (row == begin) {
        raise_tile(now, of_row, first, n, [&](auto&& raise) WM_INLINE_LAMBDA { for_vectors(n, raise); });
        continue;
      }
      T* const results = y + (row - 1) * cols + first;
      const float factor = shrunk(before.most_of[first / kSoftmaxTile], before.most) / before.sum;
      const auto result = [&](std::int64_t i, std::int64_t count)
                              WM_INLINE_LAMBDA { return load_some(before.terms + first + i, count) * factor; };
      if (row == end) {
        write_row(results, n, past_cache, result);
        continue;
      }
      raise_tile(now, of_row, first, n, [&](auto&& raise) WM_INLINE_LAMBDA {
        write_row(results, n, past_cache, [&](std::int64_t i, std::int64_t count) WM_INLINE_LAMBDA {
          raise(i, count);
          return result(i, count);
        });
      });
    }
    const KeptRow last = now;
    now = before;
    before = last;
  }
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
