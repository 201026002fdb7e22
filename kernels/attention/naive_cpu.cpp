#include <limits>
#include <source_location>
#include <string_view>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/detail/score_attention.hpp"
#include "kernels/attention/naive.hpp"
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

using ScoresPtr = std::unique_ptr<Scores>;

class NaiveCpu final : public ScoreAttention {
 public:
  NaiveCpu() : ScoreAttention(detail::kNaive, DeviceKind::cpu) {}

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const std::size_t one = Scores::bytes(problem);
    MemoryPlan plan;
    plan.forward_peak = (problem.causal ? 3 : 2) * one;
    if (for_backward) {
      plan.saved = one;
      plan.backward_peak = 3 * one;
    }
    return plan;
  }

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool for_backward) const override {
    const RowOps& ops = row_ops(problem.dtype);
    const ScoreProducts products(problem, false);
    ScoresPtr raw = make(context, problem, "ATTN_QK_MATMUL");
    {
      const Range range("ATTN_QK_MATMUL");
      products.scores(arguments.q, arguments.k, *raw);
    }
    ScoresPtr scaled = make(context, problem, "ATTN_SCALE");
    scale(ops, problem, *raw, *scaled, "ATTN_SCALE");
    raw.reset();
    ScoresPtr masked;
    if (problem.causal) {
      masked = make(context, problem, "ATTN_MASK");
      mask(ops, problem, *scaled, *masked, -std::numeric_limits<float>::infinity(), "ATTN_MASK");
    }
    ScoresPtr p = make(context, problem, "ATTN_SOFTMAX");
    {
      const Range range("ATTN_SOFTMAX");
      const Scores& from = masked ? *masked : *scaled;
      for_score_rows(problem, true, [&](std::int64_t row, std::int64_t) {
        arguments.lse[row] = ops.softmax(from.row(row), p->row(row), problem.kv_len);
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
    const ScoreProducts products(problem, false);
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
      for_score_rows(problem, true, [&](std::int64_t row, std::int64_t) {
        ops.softmax_backward(p.row(row), from.row(row), to.row(row), problem.kv_len);
      });
    });
    if (problem.causal) {
      step("ATTN_BWD_MASK",
           [&](const Scores& from, const Scores& to) { mask(ops, problem, from, to, 0.0f, "ATTN_BWD_MASK"); });
    }
    step("ATTN_BWD_SCALE",
         [&](const Scores& from, const Scores& to) { scale(ops, problem, from, to, "ATTN_BWD_SCALE"); });
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

  static void scale(const RowOps& ops, const AttentionProblem& problem, const Scores& from, const Scores& to,
                    std::string_view range_name) {
    const Range range(range_name);
    const float factor = static_cast<float>(problem.scale());
    for_score_rows(problem, true, [&](std::int64_t row, std::int64_t) {
      ops.scale(from.row(row), to.row(row), problem.kv_len, factor);
    });
  }

  static void mask(const RowOps& ops, const AttentionProblem& problem, const Scores& from, const Scores& to, float fill,
                   std::string_view range_name) {
    const Range range(range_name);
    for_score_rows(problem, true, [&](std::int64_t row, std::int64_t query) {
      ops.mask(from.row(row), to.row(row), problem.kv_len, problem.visible_keys(query), fill);
    });
  }
};

}  // namespace

const Implementation& naive_cpu() {
  static const NaiveCpu implementation;
  return implementation;
}

}  // namespace warpmeter::attention
