#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/detail/score_attention.hpp"
#include "kernels/attention/fused.hpp"
#include "kernels/runtime/annotate.hpp"

namespace warpmeter::attention {

namespace {

using detail::for_score_rows;
using detail::row_ops;
using detail::RowOps;
using detail::SavedProbabilities;
using detail::ScoreAttention;
using detail::ScoreProducts;
using detail::Scores;

class FusedCpu final : public ScoreAttention {
 public:
  FusedCpu() : ScoreAttention(detail::kFused, DeviceKind::cpu) {}

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const std::size_t one = Scores::bytes(problem);
    MemoryPlan plan;
    plan.forward_peak = one;
    if (for_backward) {
      plan.saved = one;
      plan.backward_peak = 2 * one;
    }
    return plan;
  }

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool for_backward) const override {
    const RowOps& ops = row_ops(problem.dtype);
    const ScoreProducts products(problem, true);
    std::unique_ptr<Scores> p;
    {
      const Range range("ATTN_QK_MATMUL");
      p = std::make_unique<Scores>(context, problem);
      products.scores(arguments.q, arguments.k, *p);
    }
    {
      const Range range("ATTN_SOFTMAX");
      const float scale = static_cast<float>(problem.scale());
      for_score_rows(problem, !problem.causal, [&](std::int64_t row, std::int64_t query) {
        const std::int64_t visible = problem.visible_keys(query);
        arguments.lse[row] = ops.scaled_softmax(p->row(row), visible, zeros_end(problem, visible), scale);
      });
    }
    {
      const Range range("ATTN_AV_MATMUL");
      products.output(*p, arguments.v, arguments.o);
    }
    if (!for_backward) return nullptr;
    return std::make_unique<SavedProbabilities>(std::move(p));
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* saved) const override {
    const Scores& p = probabilities(saved);
    const RowOps& ops = row_ops(problem.dtype);
    const ScoreProducts products(problem, true);
    {
      const Range range("ATTN_BWD_DV_MATMUL");
      products.value_gradient(p, arguments.d_o, arguments.dv);
    }
    std::optional<Scores> ds;
    {
      const Range range("ATTN_BWD_DP_MATMUL");
      ds.emplace(context, problem);
      products.scores_gradient(arguments.d_o, arguments.v, *ds);
    }
    {
      const Range range("ATTN_BWD_SOFTMAX");
      const float scale = static_cast<float>(problem.scale());
      for_score_rows(problem, !problem.causal, [&](std::int64_t row, std::int64_t query) {
        const std::int64_t visible = problem.visible_keys(query);
        ops.scaled_softmax_backward(p.row(row), ds->row(row), visible, zeros_end(problem, visible), scale);
      });
    }
    {
      const Range range("ATTN_BWD_DQ_MATMUL");
      products.query_gradient(*ds, arguments.k, arguments.dq);
    }
    {
      const Range range("ATTN_BWD_DK_MATMUL");
      products.key_gradient(*ds, arguments.q, arguments.dk);
    }
  }

 private:
  /// The products read whole panels past the diagonal: zeros there, and nothing further is read.
  static std::int64_t zeros_end(const AttentionProblem& problem, std::int64_t visible) {
    return std::min(problem.kv_len, visible + kMaxGemmPanel);
  }
};

}  // namespace

const Implementation& fused_cpu() {
  static const FusedCpu implementation;
  return implementation;
}

}  // namespace warpmeter::attention
