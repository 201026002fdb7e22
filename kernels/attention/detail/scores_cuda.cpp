#include "kernels/attention/detail/scores_cuda.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::detail {

namespace {

// The prediction behind the panels, in microseconds and for a device of an H200's size. Only ratios matter, and only
// roughly: near the least time the number of panels changes little.
constexpr double kPanelUs = 2.5;  // a launch, its ramp and its last wave
constexpr double kBytesPerUs = 3.5e6;
constexpr double kDeviceTiles = 132;  // tiles at once; less leave part of the device idle
constexpr double kTile = 128;
constexpr int kLeastPanelShift = 8;

double flops_per_us(DType dtype) {
  if (is_16bit(dtype)) return 400e6;
  return dtype == DType::tf32 ? 250e6 : 45e6;
}

ScoreRows all_rows(const AttentionProblem& p) {
  ScoreRows rows;
  rows.rows = p.batch * p.num_heads * p.seq_len;
  rows.seq_len = p.seq_len;
  rows.kv_len = p.kv_len;
  rows.diagonal = p.kv_len - p.seq_len;
  return rows;
}

/// Panels of least predicted time. `tiles_per_row_and_key`: tiles of the result for each row and key of a panel, and
/// `tiles_per_row` for each row, whichever the product has.
ScoreRows best_panels(const AttentionProblem& p, double tiles_per_row_and_key, double tiles_per_row) {
  ScoreRows best = all_rows(p);
  best.causal = p.causal;
  if (!p.causal) return best;
  const double elements = double(best.rows) * double(p.kv_len);
  const double whole_us = std::max(2 * elements * double(p.head_dim) / flops_per_us(p.dtype),
                                   elements * double(size_of(p.dtype)) / kBytesPerUs);
  double least = kPanelUs + whole_us;
  ScoreRows rows = best;
  const auto group = p.group_size();
  rows.first_row = std::max<std::int64_t>(0, p.seq_len - p.kv_len);
  for (rows.panel_shift = kLeastPanelShift; rows.panel_shift < ScoreRows::kOnePanel; ++rows.panel_shift) {
    const std::int64_t panels = rows.panels();
    if (panels > kMaxPanels || panels * group > kMaxPanelCalls) continue;
    // Query heads that share a key/value head follow one another in memory: one product, unless panels cut them.
    const auto calls = double(panels == 1 && rows.first_row == 0 ? 1 : group);
    double us = 0;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const auto height = double(rows.panel_row(panel + 1) - rows.panel_row(panel)), keys = double(rows.key_end(panel));
      const double tiles =
          double(p.batch * p.num_heads) / calls * height * (tiles_per_row + tiles_per_row_and_key * keys);
      const double share = height * keys / (double(p.seq_len) * double(p.kv_len));
      // A panel that leaves multiprocessors idle takes as long as one that does not.
      us += kPanelUs * calls + whole_us * share * std::max(1.0, kDeviceTiles / tiles);
    }
    if (us < least) {
      least = us;
      best = rows;
    }
    if (panels == 1) break;
  }
  return best;
}

}  // namespace

std::size_t group_sum_bytes(const AttentionProblem& p) {
  if (p.group_size() == 1 || !is_16bit(p.dtype)) return 0;
  const ScoreRows rows = inner_panels(p);
  std::int64_t keys = 0;
  for (std::int64_t panel = 0; panel < rows.panels(); ++panel) {
    if (rows.panel_row(panel) == 0) continue;  // sums over every query of every head: one product
    keys = std::max(keys, rows.key_end(panel) - (panel == 0 ? 0 : rows.key_end(panel - 1)));
  }
  const std::int64_t bytes = p.batch * p.num_kv_heads * keys * p.head_dim * std::int64_t{sizeof(float)};
  return (static_cast<std::size_t>(bytes) + 511) / 512 * 512;
}

std::size_t score_workspace_bytes(const AttentionProblem& problem) {
  return CudaGemm::workspace_bytes(Scores::bytes(problem));
}

ScoreRows whole_rows(const AttentionProblem& problem, bool causal) {
  ScoreRows rows = all_rows(problem);
  rows.causal = causal;
  return rows;
}

ScoreRows score_panels(const AttentionProblem& problem) {
  return best_panels(problem, 1 / (kTile * kTile), 0);
}

ScoreRows inner_panels(const AttentionProblem& problem) {
  return best_panels(problem, 0, 1 / kTile);
}

CudaScoreProducts::CudaScoreProducts(const Context& context, const AttentionProblem& problem, bool skip_invisible)
    : context_(context),
      problem_(problem),
      outer_(skip_invisible ? score_panels(problem) : whole_rows(problem, false)),
      inner_(skip_invisible ? inner_panels(problem) : whole_rows(problem, false)),
      gemm_(context, score_workspace_bytes(problem)) {}

template <class Pointer>
BasicOperand<Pointer> CudaScoreProducts::from(BasicOperand<Pointer> operand, std::int64_t row,
                                              std::int64_t column) const {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  operand.data = static_cast<Byte*>(operand.data) +
                 (row * operand.row_stride + column) * static_cast<std::int64_t>(size_of(problem_.dtype));
  return operand;
}

GemmProblem CudaScoreProducts::per_query_head() const {
  GemmProblem gemm;
  gemm.batch = problem_.batch;
  gemm.heads = problem_.num_heads;
  gemm.sharing_b = problem_.group_size();
  gemm.dtype = problem_.dtype;
  return gemm;
}

void CudaScoreProducts::queries_by_keys(ConstOperand queries, ConstOperand keys, const Scores& s) const {
  GemmProblem gemm = per_query_head();
  gemm.transpose_b = true;
  gemm.k = problem_.head_dim;
  for (std::int64_t panel = 0; panel < outer_.panels(); ++panel) {
    const std::int64_t row = outer_.panel_row(panel);
    gemm.m = outer_.panel_row(panel + 1) - row;
    gemm.n = outer_.causal ? outer_.key_end(panel) : problem_.kv_len;
    gemm_.multiply(gemm, from(queries, row), keys, from(s.operand(), row));
  }
}

void CudaScoreProducts::keys_summed(const Scores& s, ConstOperand keys, Operand out) const {
  GemmProblem gemm = per_query_head();
  gemm.n = problem_.head_dim;
  for (std::int64_t panel = 0; panel < inner_.panels(); ++panel) {
    const std::int64_t row = inner_.panel_row(panel);
    gemm.m = inner_.panel_row(panel + 1) - row;
    gemm.k = inner_.causal ? inner_.key_end(panel) : problem_.kv_len;
    gemm_.multiply(gemm, from(as_const(s.operand()), row), keys, from(out, row));
  }
  // Rows that no panel has, or where the product is P = 0 times what may be infinite.
  if (const std::int64_t rows = problem_.unseeing_queries(); rows > 0) {
    cuda_row_ops(problem_.dtype)
        .zero_rows(out, problem_.batch, problem_.num_heads, rows, problem_.head_dim, context_.stream);
  }
}

void CudaScoreProducts::queries_summed(const Scores& s, ConstOperand queries, Operand out) const {
  GemmProblem gemm = per_query_head();
  gemm.heads = problem_.num_kv_heads;
  gemm.terms = problem_.group_size();
  gemm.sharing_b = 1;
  gemm.transpose_a = true;
  gemm.n = problem_.head_dim;
  // From the last panel: the pass before ended with its rows of the score matrix.
  for (std::int64_t panel = inner_.panels() - 1; panel >= 0; --panel) {
    const std::int64_t row = inner_.panel_row(panel);
    const std::int64_t key = panel == 0 ? 0 : inner_.key_end(panel - 1);
    gemm.m = (inner_.causal ? inner_.key_end(panel) : problem_.kv_len) - key;
    gemm.k = problem_.seq_len - row;
    if (gemm.m == 0) continue;  // its keys were rounded into the panel before
    gemm_.multiply(gemm, from(as_const(s.operand()), row, key), from(queries, row), from(out, key));
  }
}

}  // namespace warpmeter::attention::detail
