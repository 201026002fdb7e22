#pragma once

#include "kernels/primer/detail/cpu.hpp"
#include "kernels/primer/detail/cpu_matmul_workspace.hpp"

/// z = a y on the CPU, sums in fp32: what batched_matmul and int4_matmul share.
namespace warpmeter::primer::cpu_tools::WM_ISA {

// As many sums as fit in registers: kRows x kVecs vectors, beside kVecs of y and one of a.
inline constexpr int kVecs = 2, kPanelCols = kVecs * kWidth;
#if defined(WM_ISA_avx512)
inline constexpr int kRows = 12;
#elif defined(WM_ISA_avx2)
inline constexpr int kRows = 6;
#else
inline constexpr int kRows = 4;
#endif
static_assert(kRows <= kMostRows && kStripCols % kPanelCols == 0);

/// kRows rows of a by a panel of y, both packed: a[row * inner + k], y[k * kPanelCols + col]; sums[row * kPanelCols +
/// col].
WM_INLINE void multiply_panel(const float* a, const float* y, std::int64_t inner, float* sums) {
  Vec d[kRows][kVecs] = {};
  for (std::int64_t k = 0; k < inner; ++k) {
    Vec of_y[kVecs];
    for (int j = 0; j < kVecs; ++j) of_y[j] = load(y + k * kPanelCols + j * kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Vec of_a = broadcast(a[i * inner + k]);
      for (int j = 0; j < kVecs; ++j) d[i][j] = fma(of_a, of_y[j], d[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(sums + i * kPanelCols + j * kWidth, d[i][j]);
  }
}

/// fill_row(batch, row, out) writes a row of `a` as floats; y (batch, inner, cols), z (batch, rows, cols). A task is a
/// strip of columns, whose part of y is packed once as floats, and some of the rows.
template <class T, class FillRow>
void cpu_matmul(const Problem& p, FillRow&& fill_row, const T* y, T* z, float* workspace) {
  const std::int64_t strips = (p.cols + kStripCols - 1) / kStripCols, blocks = (p.rows + kRows - 1) / kRows;
  const std::int64_t wanted = (4 * num_threads() + p.batch * strips - 1) / (p.batch * strips);
  const std::int64_t parts = wanted < blocks ? wanted : blocks;
  parallel_for(p.batch * strips * parts, [&](std::int64_t task, int worker) {
    const std::int64_t part = task % parts, strip = task / parts % strips, batch = task / parts / strips;
    float* const of_y = workspace + worker * p.inner * (kStripCols + kMostRows);
    float* const of_a = of_y + p.inner * kStripCols;
    const std::int64_t first_col = strip * kStripCols;
    const std::int64_t cols = p.cols - first_col < kStripCols ? p.cols - first_col : std::int64_t{kStripCols};
    for (std::int64_t k = 0; k < p.inner; ++k) {
      const T* const row = y + (batch * p.inner + k) * p.cols + first_col;
      for (std::int64_t col = 0; col < cols; col += kWidth) {
        store(of_y + (col / kPanelCols * p.inner + k) * kPanelCols + col % kPanelCols,
              load_some(row + col, cols - col));
      }
    }
    for (std::int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      const std::int64_t rows = p.rows - block * kRows < kRows ? p.rows - block * kRows : std::int64_t{kRows};
      for (std::int64_t i = 0; i < rows; ++i) fill_row(batch, block * kRows + i, of_a + i * p.inner);
      for (std::int64_t col = 0; col < cols; col += kPanelCols) {
        float sums[kRows * kPanelCols];
        multiply_panel(of_a, of_y + col * p.inner, p.inner, sums);
        for (std::int64_t i = 0; i < rows; ++i) {
          T* const out = z + (batch * p.rows + block * kRows + i) * p.cols + first_col + col;
          write_row(out, cols - col < kPanelCols ? cols - col : std::int64_t{kPanelCols}, false,
                    [&](Run run) { return load(sums + i * kPanelCols + run.i); });
        }
      }
    }
  });
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
