// What fused skips under the causal mask: host arithmetic alone, no GPU needed.
#include <gtest/gtest.h>

#include "kernels/attention/detail/scores_cuda.hpp"

namespace warpmeter::attention::detail {
namespace {

AttentionProblem problem(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                         std::int64_t kv_len, std::int64_t head_dim, DType dtype) {
  AttentionProblem p;
  p.batch = batch;
  p.num_heads = heads;
  p.num_kv_heads = kv_heads;
  p.seq_len = seq_len;
  p.kv_len = kv_len;
  p.head_dim = head_dim;
  p.dtype = dtype;
  return p;
}

/// Panels of any size cover every visible pair once, and read nothing that is neither visible nor a zero.
TEST(ScorePanels, CoverWhatIsVisibleAndNothingUnwritten) {
  for (const auto& [seq_len, kv_len] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                        {1, 700},
                                        {700, 1},
                                        {256, 256},
                                        {257, 255},
                                        {600, 601},
                                        {1030, 1500},
                                        {1500, 1030},
                                        {1024, 1024},
                                        {1000, 1063}}) {
    for (const int shift : {4, 6, 8, 10, ScoreRows::kOnePanel}) {
      const AttentionProblem p = problem(1, 1, 1, seq_len, kv_len, 16, DType::fp32);
      ScoreRows rows = whole_rows(p, true);
      rows.panel_shift = shift;
      if (shift != ScoreRows::kOnePanel) rows.first_row = std::max<std::int64_t>(0, seq_len - kv_len);
      SCOPED_TRACE(testing::Message() << seq_len << " x " << kv_len << ", panels of 2^" << shift);
      const std::int64_t panels = rows.panels();
      EXPECT_EQ(rows.panel_row(0), rows.first_row);
      EXPECT_EQ(rows.panel_row(panels), seq_len);
      EXPECT_EQ(rows.key_end(panels - 1), kv_len);
      for (std::int64_t row = 0; row < rows.first_row; ++row) ASSERT_EQ(rows.visible(row), 0);
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        const std::int64_t first = rows.panel_row(panel), last = rows.panel_row(panel + 1) - 1;
        ASSERT_LE(first, last);
        const std::int64_t key_begin = panel == 0 ? 0 : rows.key_end(panel - 1), key_end = rows.key_end(panel);
        ASSERT_LE(key_begin, key_end);
        for (std::int64_t row = first; row <= last; ++row) {
          ASSERT_EQ(rows.visible(row), p.visible_keys(row));
          ASSERT_LE(rows.visible(row), key_end);
          ASSERT_EQ(rows.zeros_end(row), key_end);  // what the products over this row's panel read
        }
        // No query before the panel's first sees a key of the panel's.
        if (first > 0 && key_begin < key_end) {
          ASSERT_LE(rows.visible(first - 1), key_begin);
        }
        // Rows from the panel's first on have zeros (or scores) up to the end of its keys.
        for (std::int64_t row = first; row < seq_len; ++row) ASSERT_GE(rows.zeros_end(row), key_end);
      }
    }
  }
}

TEST(ScorePanels, SplitLargeProblemsAndLeaveSmallOnesWhole) {
  const auto counts = [](std::int64_t length, std::int64_t dim, DType dtype) {
    const AttentionProblem p = problem(8, 1, 1, length, length, dim, dtype);
    return std::pair(score_panels(p).panels(), inner_panels(p).panels());
  };
  EXPECT_EQ(counts(256, 64, DType::fp32), std::pair(std::int64_t{1}, std::int64_t{1}));
  EXPECT_GE(counts(4096, 64, DType::fp32).first, 4);
  EXPECT_GE(counts(16384, 64, DType::fp32).second, 4);
  EXPECT_LE(counts(65536, 128, DType::fp32).first, kMaxPanels);
  AttentionProblem full = problem(8, 1, 1, 8192, 8192, 64, DType::fp32);
  full.causal = false;
  EXPECT_EQ(score_panels(full).panels(), 1);
  EXPECT_EQ(inner_panels(full).panels(), 1);
  EXPECT_EQ(inner_panels(full).zeros_end(0), 8192);
}

TEST(ScorePanels, GroupsThatPanelsCutAreAddedUpInFp32) {
  EXPECT_EQ(group_sum_bytes(problem(64, 8, 8, 2048, 2048, 16, DType::bf16)), 0U);
  EXPECT_EQ(group_sum_bytes(problem(64, 8, 2, 2048, 2048, 16, DType::fp32)), 0U);
  EXPECT_EQ(group_sum_bytes(problem(1, 8, 2, 64, 64, 16, DType::bf16)), 0U);
  const AttentionProblem p = problem(64, 8, 2, 2048, 2048, 16, DType::bf16);
  const ScoreRows rows = inner_panels(p);
  ASSERT_GT(rows.panels(), 1);
  EXPECT_EQ(group_sum_bytes(p), std::size_t(64 * 2 * 16 * 4) * std::size_t(rows.key_end(0)));  // panels of one height
}

}  // namespace
}  // namespace warpmeter::attention::detail
