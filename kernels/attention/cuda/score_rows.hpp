#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define WM_SCORE_ROWS_INLINE __host__ __device__ __forceinline__
#else
#define WM_SCORE_ROWS_INLINE inline
#endif

/// Which part of a score matrix counts under the causal mask: shared by the row kernels and the products around them.
namespace warpmeter::attention::detail {

/// The rows of a dense score matrix (batch x num_heads, seq_len, kv_len), and how far each matters.
///
/// Query i sees the keys [0, i + 1 + diagonal), diagonal = kv_len - seq_len. The products skip the rest by panels: rows
/// [first_row + p * R, first_row + (p + 1) * R), R = 2^panel_shift, are multiplied up to key_end(p) alone. Keys from
/// key_end(p - 1) to key_end(p) are seen from panel p's first row on at the earliest. So a row's elements from its
/// visible keys to its panel's key_end must be 0, and nothing further is ever read. Rows before first_row see nothing
/// and are in no panel.
struct ScoreRows {
  std::int64_t rows = 0;  ///< batch * num_heads * seq_len
  std::int64_t seq_len = 1, kv_len = 1;
  std::int64_t diagonal = 0;
  std::int64_t first_row = 0;
  int panel_shift = kOnePanel;
  bool causal = false;  ///< false: every element counts

  /// One panel of everything.
  static constexpr int kOnePanel = 40;
  /// Panels end at multiples of it, so that the products' operands stay aligned.
  static constexpr std::int64_t kKeyAlignment = 64;

  [[nodiscard]] WM_SCORE_ROWS_INLINE std::int64_t visible(std::int64_t query) const {
    if (!causal) return kv_len;
    const std::int64_t keys = query + 1 + diagonal;
    return keys < 0 ? 0 : keys < kv_len ? keys : kv_len;
  }
  [[nodiscard]] WM_SCORE_ROWS_INLINE std::int64_t panel_row(std::int64_t panel) const {
    const std::int64_t row = first_row + (panel << panel_shift);
    return row < seq_len ? row : seq_len;
  }
  [[nodiscard]] WM_SCORE_ROWS_INLINE std::int64_t key_end(std::int64_t panel) const {
    const std::int64_t row = panel_row(panel + 1);
    if (row == seq_len) return kv_len;
    const std::int64_t keys = (row + diagonal + kKeyAlignment - 1) / kKeyAlignment * kKeyAlignment;
    return keys < kv_len ? keys : kv_len;
  }
  [[nodiscard]] WM_SCORE_ROWS_INLINE std::int64_t panels() const {
    return (seq_len - first_row + (std::int64_t{1} << panel_shift) - 1) >> panel_shift;
  }
  /// Where the zeros behind a row's visible keys end.
  [[nodiscard]] WM_SCORE_ROWS_INLINE std::int64_t zeros_end(std::int64_t query) const {
    if (!causal) return kv_len;
    if (query < first_row) return 0;
    return key_end((query - first_row) >> panel_shift);
  }
};

}  // namespace warpmeter::attention::detail

#undef WM_SCORE_ROWS_INLINE
