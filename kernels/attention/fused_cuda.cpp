#include "kernels/attention/fused_cuda.hpp"

#include <memory>
#include <optional>

#include "kernels/attention/detail/score_attention.hpp"
#include "kernels/attention/detail/scores_cuda.hpp"
#include "kernels/runtime/annotate.hpp"

namespace warpmeter::attention {

namespace {

using detail::cuda_row_ops;
using detail::CudaScoreProducts;
using detail::Order;
using detail::SavedProbabilities;
using detail::ScoreAttention;
using detail::Scores;

class FusedCuda final : public ScoreAttention {
 public:
  FusedCuda() : ScoreAttention(detail::kFused, DeviceKind::cuda) {}

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const std::size_t one = Scores::bytes(problem), workspace = detail::score_workspace_bytes(problem);
    MemoryPlan plan;
    plan.forward_peak = one + workspace;
    if (for_backward) {
      plan.saved = one;
      plan.backward_peak = 2 * one + workspace + detail::group_sum_bytes(problem);
    }
    return plan;
  }

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool for_backward) const override {
    const DeviceGuard guard(context.device());
    const CudaScoreProducts products(context, problem, true);
    std::unique_ptr<Scores> p;
    {
      const Range range("ATTN_QK_MATMUL");
      p = std::make_unique<Scores>(context, problem);
      products.scores(arguments.q, arguments.k, *p);
    }
    {
      // From the end: the last panel's scores are still in the L2 cache.
      const Range range("ATTN_SOFTMAX");
      cuda_row_ops(problem.dtype)
          .softmax(products.rows(), p->row(0), p->row(0), arguments.lse, static_cast<float>(problem.scale()),
                   Order::descending, context.stream);
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
    const DeviceGuard guard(context.device());
    const CudaScoreProducts products(context, problem, true);
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
      cuda_row_ops(problem.dtype)
          .softmax_backward(products.rows(), p.row(0), ds->row(0), ds->row(0), static_cast<float>(problem.scale()),
                            Order::descending, context.stream);
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
};

}  // namespace

const Implementation& fused_cuda() {
  static const FusedCuda implementation;
  return implementation;
}

}  // namespace warpmeter::attention
