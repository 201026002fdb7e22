#include "kernels/attention/naive_cuda.hpp"

#include <limits>
#include <source_location>
#include <string_view>

#include "kernels/attention/detail/score_attention.hpp"
#include "kernels/attention/detail/scores_cuda.hpp"
#include "kernels/runtime/annotate.hpp"

namespace warpmeter::attention {

namespace {

using detail::cuda_row_ops;
using detail::CudaRowOps;
using detail::CudaScoreProducts;
using detail::Order;
using detail::SavedProbabilities;
using detail::ScoreAttention;
using detail::ScoreRows;
using detail::Scores;
using detail::whole_rows;

using ScoresPtr = std::unique_ptr<Scores>;

class NaiveCuda final : public ScoreAttention {
 public:
  NaiveCuda() : ScoreAttention(detail::kNaive, DeviceKind::cuda) {}

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const std::size_t one = Scores::bytes(problem), workspace = detail::score_workspace_bytes(problem);
    MemoryPlan plan;
    plan.forward_peak = (problem.causal ? 3 : 2) * one + workspace;
    if (for_backward) {
      plan.saved = one;
      plan.backward_peak = 3 * one + workspace;
    }
    return plan;
  }

  // Every kernel starts where the one before it ended: what that wrote last is still in the L2 cache.

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool for_backward) const override {
    const DeviceGuard guard(context.device());
    const CudaRowOps& ops = cuda_row_ops(problem.dtype);
    const ScoreRows all = whole_rows(problem, false);
    const CudaScoreProducts products(context, problem, false);
    ScoresPtr raw = make(context, problem, "ATTN_QK_MATMUL");
    {
      const Range range("ATTN_QK_MATMUL");
      products.scores(arguments.q, arguments.k, *raw);
    }
    ScoresPtr scores = make(context, problem, "ATTN_SCALE");
    {
      const Range range("ATTN_SCALE");
      scale(context, problem, *raw, *scores, Order::descending);
    }
    raw.reset();
    ScoresPtr masked;
    Order order = Order::ascending;
    if (problem.causal) {
      const Range range("ATTN_MASK");
      masked = make(context, problem, "ATTN_MASK");
      ops.mask(whole_rows(problem, true), scores->row(0), masked->row(0), -std::numeric_limits<float>::infinity(),
               order, context.stream);
      order = Order::descending;
    }
    ScoresPtr p = make(context, problem, "ATTN_SOFTMAX");
    {
      const Range range("ATTN_SOFTMAX");
      const Scores& from = masked ? *masked : *scores;
      ops.softmax(all, from.row(0), p->row(0), arguments.lse, 1.0f, order, context.stream);
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
    const CudaRowOps& ops = cuda_row_ops(problem.dtype);
    const CudaScoreProducts products(context, problem, false);
    {
      const Range range("ATTN_BWD_DV_MATMUL");
      products.value_gradient(p, arguments.d_o, arguments.dv);
    }
    ScoresPtr gradient = make(context, problem, "ATTN_BWD_DP_MATMUL");
    {
      const Range range("ATTN_BWD_DP_MATMUL");
      products.scores_gradient(arguments.d_o, arguments.v, *gradient);
    }
    // Each operation's input is given back once its output is there.
    const auto step = [&](std::string_view name, auto operation) {
      ScoresPtr next = make(context, problem, name);
      operation(*gradient, *next);
      gradient = std::move(next);
    };
    step("ATTN_BWD_SOFTMAX", [&](const Scores& from, const Scores& to) {
      const Range range("ATTN_BWD_SOFTMAX");
      ops.softmax_backward(whole_rows(problem, false), p.row(0), from.row(0), to.row(0), 1.0f, Order::descending,
                           context.stream);
    });
    Order order = Order::ascending;
    if (problem.causal) {
      step("ATTN_BWD_MASK", [&](const Scores& from, const Scores& to) {
        const Range range("ATTN_BWD_MASK");
        ops.mask(whole_rows(problem, true), from.row(0), to.row(0), 0.0f, order, context.stream);
      });
      order = Order::descending;
    }
    step("ATTN_BWD_SCALE", [&](const Scores& from, const Scores& to) {
      const Range range("ATTN_BWD_SCALE");
      scale(context, problem, from, to, order);
    });
    {
      const Range range("ATTN_BWD_DQ_MATMUL");
      products.query_gradient(*gradient, arguments.k, arguments.dq);
    }
    {
      const Range range("ATTN_BWD_DK_MATMUL");
      products.key_gradient(*gradient, arguments.q, arguments.dk);
    }
  }

 private:
  /// Scores that `operation` writes: who looks at a memory snapshot finds them by its name.
  static ScoresPtr make(const Context& context, const AttentionProblem& problem, std::string_view operation,
                        std::source_location where = std::source_location::current()) {
    const FrameScope frame(operation, where);
    return std::make_unique<Scores>(context, problem);
  }
  static void scale(const Context& context, const AttentionProblem& problem, const Scores& from, const Scores& to,
                    Order order) {
    const std::int64_t count = problem.batch * problem.num_heads * problem.seq_len * problem.kv_len;
    cuda_row_ops(problem.dtype)
        .scale(from.row(0), to.row(0), count, static_cast<float>(problem.scale()), order, context.stream);
  }
};

}  // namespace

const Implementation& naive_cuda() {
  static const NaiveCuda implementation;
  return implementation;
}

}  // namespace warpmeter::attention
