#include <numeric>
#include <vector>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/reference.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {

namespace {

constexpr double kMostWork = 4e11;  // multiply-adds: a minute or two on a laptop

/// The request for every row of one group.
class WholeGroup {
 public:
  WholeGroup(const AttentionProblem& problem, bool backward)
      : queries_(static_cast<std::size_t>(problem.seq_len)),
        keys_(backward ? static_cast<std::size_t>(problem.kv_len) : 0) {
    std::iota(queries_.begin(), queries_.end(), 0);
    std::iota(keys_.begin(), keys_.end(), 0);
    request_.queries = queries_;
    request_.keys = keys_;
    request_.backward = backward;
  }
  WholeGroup(const WholeGroup&) = delete;
  WholeGroup& operator=(const WholeGroup&) = delete;
  [[nodiscard]] ReferenceRequest of(std::int64_t batch, std::int64_t kv_head) const {
    ReferenceRequest request = request_;
    request.batch = batch;
    request.kv_head = kv_head;
    return request;
  }
  [[nodiscard]] std::size_t workspace_bytes(const AttentionProblem& problem) const {
    return reference_workspace(problem, request_) * sizeof(double);
  }

 private:
  std::vector<std::int64_t> queries_, keys_;
  ReferenceRequest request_;
};

class ReferenceCpu final : public Implementation {
 public:
  std::string_view name() const override { return "reference"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  std::string_view description() const override {
    return "the formula in fp64, row by row; what the others are compared with, for small problems";
  }
  std::string_view dtypes() const override { return "fp32,bf16,fp16"; }

  std::optional<std::string> unsupported(const AttentionProblem& problem, Pass pass) const override {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    if (problem.dtype == DType::tf32) return "tf32 is a CUDA compute mode";
    const ReferenceCosts costs = reference_costs(problem, pass == Pass::backward);
    const double work =
        static_cast<double>(problem.batch * problem.num_kv_heads) *
        (costs.query_row * static_cast<double>(problem.seq_len) + costs.key_row * static_cast<double>(problem.kv_len));
    if (work > kMostWork) return "too large for the fp64 reference (more than 4e11 multiply-adds)";
    return std::nullopt;
  }

  std::string kernel(const AttentionProblem&, Pass) const override { return "reference_cpu"; }

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    MemoryPlan plan;
    plan.forward_peak = rounded(WholeGroup(problem, false).workspace_bytes(problem));
    if (for_backward) plan.backward_peak = rounded(WholeGroup(problem, true).workspace_bytes(problem));
    return plan;
  }

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool /*for_backward*/) const override {
    const Range range("ATTN_REFERENCE");
    const WholeGroup group(problem, false);
    const Buffer workspace(context, group.workspace_bytes(problem));
    const ReferenceInputs inputs{arguments.q, arguments.k, arguments.v, {}};
    for_groups(problem, [&](std::int64_t batch, std::int64_t kv_head) {
      const ReferenceResult result =
          evaluate_reference(problem, inputs, group.of(batch, kv_head), static_cast<double*>(workspace.data()));
      write_queries(problem, batch, kv_head, result.o, arguments.o);
      const std::int64_t first = (batch * problem.num_heads + kv_head * problem.group_size()) * problem.seq_len;
      for (std::size_t i = 0; i < result.lse.size(); ++i) arguments.lse[first + std::int64_t(i)] = float(result.lse[i]);
    });
    return nullptr;
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* /*saved*/) const override {
    const Range range("ATTN_REFERENCE_BWD");
    const WholeGroup group(problem, true);
    const Buffer workspace(context, group.workspace_bytes(problem));
    const ReferenceInputs inputs{arguments.q, arguments.k, arguments.v, arguments.d_o};
    for_groups(problem, [&](std::int64_t batch, std::int64_t kv_head) {
      const ReferenceResult result =
          evaluate_reference(problem, inputs, group.of(batch, kv_head), static_cast<double*>(workspace.data()));
      write_queries(problem, batch, kv_head, result.dq, arguments.dq);
      write_head(problem, batch, kv_head, problem.kv_len, result.dk.data(), arguments.dk);
      write_head(problem, batch, kv_head, problem.kv_len, result.dv.data(), arguments.dv);
    });
  }

 private:
  static std::size_t rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }

  template <class Body>
  static void for_groups(const AttentionProblem& problem, Body body) {
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
      for (std::int64_t kv_head = 0; kv_head < problem.num_kv_heads; ++kv_head) body(batch, kv_head);
    }
  }

  static void write_queries(const AttentionProblem& problem, std::int64_t batch, std::int64_t kv_head,
                            std::span<const double> values, const Operand& to) {
    for (std::int64_t member = 0; member < problem.group_size(); ++member) {
      write_head(problem, batch, kv_head * problem.group_size() + member, problem.seq_len,
                 values.data() + member * problem.seq_len * problem.head_dim, to);
    }
  }

  /// Rounds twice (to fp32, then to a 16-bit type): within the half unit that one rounding costs but for a tie.
  static void write_head(const AttentionProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t rows,
                         const double* values, const Operand& to) {
    const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
    float row[256];
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < problem.head_dim; ++c) row[c] = static_cast<float>(values[r * problem.head_dim + c]);
      const std::int64_t offset = batch * to.batch_stride + head * to.head_stride + r * to.row_stride;
      detail::row_ops(problem.dtype).from_float(row, static_cast<char*>(to.data) + offset * bytes, problem.head_dim);
    }
  }
};

}  // namespace

const Implementation& reference_cpu() {
  static const ReferenceCpu implementation;
  return implementation;
}

}  // namespace warpmeter::attention
