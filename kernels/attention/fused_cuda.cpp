#include "kernels/attention/fused_cuda.hpp"

#include "kernels/attention/detail/scores_cuda.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

using detail::cuda_row_ops;
using detail::CudaScoreProducts;
using detail::Order;
using detail::SavedProbabilities;
using detail::Scores;

class FusedCuda final : public Implementation {
 public:
  std::string_view name() const override { return "fused"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  std::string_view description() const override {
    return "what a compiler makes of naive: scale, mask and softmax in one pass, in place; holds P";
  }
  std::string_view dtypes() const override { return "fp32,tf32,bf16,fp16"; }

  std::optional<std::string> unsupported(const AttentionProblem& problem, Pass) const override {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    return std::nullopt;
  }

  std::string kernel(const AttentionProblem&, Pass) const override { return "fused_cuda"; }

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
    auto p = std::make_unique<Scores>(context, problem);
    {
      const Range range("ATTN_QK_MATMUL");
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
    const auto* kept = dynamic_cast<const SavedProbabilities*>(saved);
    WM_CHECK(kept != nullptr, "fused's backward needs what its forward kept");
    const Scores& p = kept->p();
    const DeviceGuard guard(context.device());
    const CudaScoreProducts products(context, problem, true);
    {
      const Range range("ATTN_BWD_DV_MATMUL");
      products.value_gradient(p, arguments.d_o, arguments.dv);
    }
    const Scores ds(context, problem);
    {
      const Range range("ATTN_BWD_DP_MATMUL");
      products.scores_gradient(arguments.d_o, arguments.v, ds);
    }
    {
      const Range range("ATTN_BWD_SOFTMAX");
      cuda_row_ops(problem.dtype)
          .softmax_backward(products.rows(), p.row(0), ds.row(0), ds.row(0), static_cast<float>(problem.scale()),
                            Order::descending, context.stream);
    }
    {
      const Range range("ATTN_BWD_DQ_MATMUL");
      products.query_gradient(ds, arguments.k, arguments.dq);
    }
    {
      const Range range("ATTN_BWD_DK_MATMUL");
      products.key_gradient(ds, arguments.q, arguments.dk);
    }
  }
};

}  // namespace

const Implementation& fused_cuda() {
  static const FusedCuda implementation;
  return implementation;
}

}  // namespace warpmeter::attention
