#pragma once

#include "kernels/attention/cuda/row_ops.hpp"
#include "kernels/attention/detail/scores.hpp"
#include "kernels/attention/gemm_cuda.hpp"

/// What naive and fused share on CUDA: the five products around whole score matrices, and what the causal mask lets
/// them skip.
namespace warpmeter::attention::detail {

/// Bytes of cuBLAS workspace for a problem: a multiple of the allocator's rounding.
[[nodiscard]] std::size_t score_workspace_bytes(const AttentionProblem& problem);

/// Every element of every row counts: what naive works on. `causal` alone tells mask() what is visible.
[[nodiscard]] ScoreRows whole_rows(const AttentionProblem& problem, bool causal);

/// The panels of a product under the causal mask. More panels skip more of what nobody sees, each costs a launch, and
/// each has to fill the device: the split is the one whose predicted time is least, from the problem's shape alone (so
/// bits and memory do not depend on the machine). Without a mask: one panel.
[[nodiscard]] ScoreRows score_panels(const AttentionProblem& problem);  ///< of products that write scores
[[nodiscard]] ScoreRows inner_panels(const AttentionProblem& problem);  ///< of products that sum over scores

/// Bytes of fp32 sums that the products of the backward take for a time: where panels cut the query heads that share a
/// key/value head in 16-bit types. For dense operands; 0 without panels.
[[nodiscard]] std::size_t group_sum_bytes(const AttentionProblem& problem);

/// Panels, and panels times query heads of a group, at most: a pass stays well below the number of launches that a
/// timer's blocker holds back.
inline constexpr std::int64_t kMaxPanels = 16, kMaxPanelCalls = 64;

/// The five products, enqueued on the context's stream. With `skip_invisible` score matrices are multiplied up to
/// where their panel's last row sees (score_panels), and read up to zeros_end() of inner_panels.
class CudaScoreProducts {
 public:
  /// Takes the workspace: throws OutOfMemory.
  CudaScoreProducts(const Context& context, const AttentionProblem& problem, bool skip_invisible);

  /// For the row kernels between the products.
  [[nodiscard]] const ScoreRows& rows() const { return inner_; }

  void scores(ConstOperand q, ConstOperand k, const Scores& s) const { queries_by_keys(q, k, s); }
  void scores_gradient(ConstOperand d_o, ConstOperand v, const Scores& dp) const { queries_by_keys(d_o, v, dp); }

  void output(const Scores& p, ConstOperand v, Operand o) const { keys_summed(p, v, o); }
  void query_gradient(const Scores& ds, ConstOperand k, Operand dq) const { keys_summed(ds, k, dq); }

  void value_gradient(const Scores& p, ConstOperand d_o, Operand dv) const { queries_summed(p, d_o, dv); }
  void key_gradient(const Scores& ds, ConstOperand q, Operand dk) const { queries_summed(ds, q, dk); }

 private:
  void queries_by_keys(ConstOperand queries, ConstOperand keys, const Scores& s) const;
  void keys_summed(const Scores& s, ConstOperand keys, Operand out) const;
  void queries_summed(const Scores& s, ConstOperand queries, Operand out) const;
  [[nodiscard]] GemmProblem per_query_head() const;

  /// An operand whose row 0 is another's `row`, or whose column 0 is its `column`.
  template <class Pointer>
  [[nodiscard]] BasicOperand<Pointer> from(BasicOperand<Pointer> operand, std::int64_t row,
                                           std::int64_t column = 0) const;

  Context context_;
  AttentionProblem problem_;
  ScoreRows outer_, inner_;
  CudaGemm gemm_;
};

}  // namespace warpmeter::attention::detail
