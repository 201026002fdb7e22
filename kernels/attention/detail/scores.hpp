#pragma once

#include <algorithm>
#include <memory>

#include "kernels/attention/detail/operand_rows.hpp"
#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/gemm.hpp"
#include "kernels/attention/implementation.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/tensor.hpp"

/// What naive and fused share: whole score matrices (batch, num_heads, seq_len, kv_len) and the products around them.
namespace warpmeter::attention::detail {

/// One score-shaped tensor in the problem's storage type, dense.
class Scores {
 public:
  /// Throws OutOfMemory.
  Scores(const Context& context, const AttentionProblem& problem)
      : buffer_(context, unrounded_bytes(problem)), problem_(problem) {}

  [[nodiscard]] Operand operand() const {
    const std::int64_t row = problem_.kv_len;
    return {buffer_.data(), problem_.num_heads * problem_.seq_len * row, problem_.seq_len * row, row};
  }
  /// Row `index` of all batch * num_heads * seq_len.
  [[nodiscard]] void* row(std::int64_t index) const {
    return static_cast<char*>(buffer_.data()) + index * problem_.kv_len * std::int64_t(size_of(problem_.dtype));
  }

  /// Bytes that one takes from the allocator, after rounding.
  [[nodiscard]] static std::size_t bytes(const AttentionProblem& problem) {
    return (unrounded_bytes(problem) + 511) / 512 * 512;
  }

 private:
  static std::size_t unrounded_bytes(const AttentionProblem& p) {
    return static_cast<std::size_t>(p.batch * p.num_heads * p.seq_len * p.kv_len) * size_of(p.dtype);
  }

  Buffer buffer_;
  AttentionProblem problem_;
};

/// P, from forward to backward.
class SavedProbabilities final : public Saved {
 public:
  explicit SavedProbabilities(std::unique_ptr<Scores> p) : p_(std::move(p)) {}
  [[nodiscard]] const Scores& p() const { return *p_; }

 private:
  std::unique_ptr<Scores> p_;
};

/// Calls body(row index, query) for every row of a score matrix. `even`: every row takes the same time, and each core
/// gets the same rows in every such loop, so that it finds them in its own cache. Otherwise blocks of rows are dealt
/// out as cores come free.
template <class Body>
void for_score_rows(const AttentionProblem& problem, bool even, Body&& body) {
  constexpr std::int64_t kElements = 1 << 15;  // a block of rows: some tens of microseconds of work
  const std::int64_t rows = problem.batch * problem.num_heads * problem.seq_len;
  if (even) {
    // A quarter of a nanosecond an element: what a pass over cached memory takes at best.
    parallel_for_static_work(rows, 0.25 * static_cast<double>(problem.kv_len),
                             [&](std::int64_t row) { body(row, row % problem.seq_len); });
    return;
  }
  const std::int64_t block = std::max<std::int64_t>(1, kElements / problem.kv_len);
  parallel_for((rows + block - 1) / block, [&](std::int64_t index, int) {
    const std::int64_t end = std::min(rows, (index + 1) * block);
    for (std::int64_t row = index * block; row < end; ++row) body(row, row % problem.seq_len);
  });
}

/// The five products. With `skip_invisible` panels beyond the causal diagonal are left out; then the score matrices
/// must hold zeros from a row's visible keys on for another kMaxGemmPanel elements.
class ScoreProducts {
 public:
  ScoreProducts(const AttentionProblem& problem, bool skip_invisible)
      : problem_(problem), skip_(skip_invisible && problem.causal) {}

  void scores(ConstOperand q, ConstOperand k, const Scores& s) const { queries_by_keys(q, k, s); }
  void scores_gradient(ConstOperand d_o, ConstOperand v, const Scores& dp) const { queries_by_keys(d_o, v, dp); }

  void output(const Scores& p, ConstOperand v, Operand o) const { keys_summed(p, v, o); }
  void query_gradient(const Scores& ds, ConstOperand k, Operand dq) const { keys_summed(ds, k, dq); }

  void value_gradient(const Scores& p, ConstOperand d_o, Operand dv) const { queries_summed(p, d_o, dv); }
  void key_gradient(const Scores& ds, ConstOperand q, Operand dk) const { queries_summed(ds, q, dk); }

 private:
  void queries_by_keys(ConstOperand queries, ConstOperand keys, const Scores& s) const {
    GemmProblem gemm = per_query_head(problem_.seq_len, problem_.kv_len, problem_.head_dim, Skip::columns);
    gemm.transpose_b = true;
    gemm_cpu(gemm, queries, keys, s.operand());
  }
  void keys_summed(const Scores& s, ConstOperand keys, Operand out) const {
    gemm_cpu(per_query_head(problem_.seq_len, problem_.head_dim, problem_.kv_len, Skip::inner_end),
             as_const(s.operand()), keys, out);
    zero_unseeing_queries(problem_, out);
  }
  void queries_summed(const Scores& s, ConstOperand queries, Operand out) const {
    GemmProblem gemm = per_query_head(problem_.kv_len, problem_.head_dim, problem_.seq_len, Skip::inner_begin);
    gemm.heads = problem_.num_kv_heads;
    gemm.terms = problem_.group_size();
    gemm.sharing_b = 1;
    gemm.transpose_a = true;
    gemm_cpu(gemm, as_const(s.operand()), queries, out);
  }
  [[nodiscard]] GemmProblem per_query_head(std::int64_t m, std::int64_t n, std::int64_t k, Skip skip) const {
    GemmProblem gemm;
    gemm.batch = problem_.batch;
    gemm.heads = problem_.num_heads;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.sharing_b = problem_.group_size();
    gemm.dtype = problem_.dtype;
    gemm.skip = skip_ ? skip : Skip::nothing;
    gemm.diagonal = problem_.kv_len - problem_.seq_len;
    return gemm;
  }

  AttentionProblem problem_;
  bool skip_;
};

}  // namespace warpmeter::attention::detail
