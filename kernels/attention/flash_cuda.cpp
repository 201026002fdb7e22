#include "kernels/attention/flash_cuda.hpp"

#include <cmath>
#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {
namespace {

constexpr double kLog2e = 1.4426950408889634;

std::size_t rounded(std::int64_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (static_cast<std::size_t>(bytes) + kRounding - 1) / kRounding * kRounding;
}

flash_sm80::Shape shape_of(const AttentionProblem& problem) {
  flash_sm80::Shape shape;
  shape.batch = problem.batch;
  shape.num_heads = problem.num_heads;
  shape.num_kv_heads = problem.num_kv_heads;
  shape.seq_len = problem.seq_len;
  shape.kv_len = problem.kv_len;
  shape.head_dim = static_cast<int>(problem.head_dim);
  shape.causal = problem.causal;
  shape.scale = static_cast<float>(problem.scale());
  shape.scale_log2 = static_cast<float>(problem.scale() * kLog2e);
  return shape;
}

flash_sm80::ConstTensorView view(const ConstOperand& operand) {
  return {operand.data, operand.batch_stride, operand.head_stride, operand.row_stride};
}
flash_sm80::TensorView view(const Operand& operand) {
  return {operand.data, operand.batch_stride, operand.head_stride, operand.row_stride};
}

/// Whether every row of the operand starts on a 16-byte boundary.
template <class Pointer>
bool rows_aligned(const BasicOperand<Pointer>& operand, const AttentionProblem& problem) {
  const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const auto aligned = [&](std::int64_t stride, std::int64_t count) { return count == 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && aligned(operand.batch_stride, problem.batch) &&
         aligned(operand.head_stride, problem.num_heads) && aligned(operand.row_stride, 2);
}

/// Whether the kernels with 16-byte copies can take the problem at all; rows_aligned() of the operands comes on top.
bool vector_head_dim(const AttentionProblem& problem) {
  return problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype)) % 16 == 0;
}

class FlashCuda final : public Implementation {
 public:
  explicit FlashCuda(std::string_view name, std::string_view description) : name_(name), description_(description) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] DeviceKind device_kind() const override { return DeviceKind::cuda; }
  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] std::string_view dtypes() const override { return "bf16,fp16"; }

  [[nodiscard]] std::optional<std::string> unsupported(const AttentionProblem& problem, Pass /*pass*/) const override {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    if (!is_16bit(problem.dtype)) return "this path has bf16 and fp16";
    return std::nullopt;
  }

  [[nodiscard]] std::string kernel(const AttentionProblem& problem, Pass pass) const override {
    const int head_dim = static_cast<int>(problem.head_dim);
    const bool vector = vector_head_dim(problem);
    return pass == Pass::forward ? flash_sm80::forward_kernel(problem.dtype, head_dim, vector).name
                                 : flash_sm80::backward_kernel(problem.dtype, head_dim, vector).name;
  }

  [[nodiscard]] MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    MemoryPlan memory;
    if (for_backward) {
      const auto bytes = workspace_of(problem);
      memory.backward_peak = rounded(bytes.row_stats) + rounded(bytes.dq_accumulator) + rounded(bytes.turns);
    }
    return memory;
  }

  [[nodiscard]] std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                               const ForwardArguments& arguments,
                                               bool /*for_backward*/) const override {
    const Range range("ATTN_FLASH_FWD");
    const DeviceGuard guard(context.device());
    flash_sm80::ForwardParams params;
    params.shape = shape_of(problem);
    params.schedule.heads_per_group = flash_sm80::heads_per_group(streamed_bytes(problem, problem.kv_len));
    params.q = view(arguments.q);
    params.k = view(arguments.k);
    params.v = view(arguments.v);
    params.o = view(arguments.o);
    params.lse = arguments.lse;
    const bool vector = vector_head_dim(problem) && rows_aligned(arguments.q, problem) &&
                        rows_aligned(arguments.k, problem) && rows_aligned(arguments.v, problem) &&
                        rows_aligned(arguments.o, problem);
    flash_sm80::forward_kernel(problem.dtype, params.shape.head_dim, vector).launch(params, stream_of(context));
    return nullptr;
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* /*saved*/) const override {
    const Range range("ATTN_FLASH_BWD");
    const DeviceGuard guard(context.device());
    const auto bytes = workspace_of(problem);
    const Buffer row_stats(context, static_cast<std::size_t>(bytes.row_stats));
    const Buffer dq_accumulator(context, static_cast<std::size_t>(bytes.dq_accumulator));
    const Buffer turns(context, static_cast<std::size_t>(bytes.turns));
    flash_sm80::BackwardParams params;
    params.shape = shape_of(problem);
    params.schedule.heads_per_group =
        flash_sm80::heads_per_group(problem.group_size() * streamed_bytes(problem, problem.seq_len));
    params.q = view(arguments.q);
    params.k = view(arguments.k);
    params.v = view(arguments.v);
    params.o = view(arguments.o);
    params.d_o = view(arguments.d_o);
    params.lse = arguments.lse;
    params.dq = view(arguments.dq);
    params.dk = view(arguments.dk);
    params.dv = view(arguments.dv);
    params.deterministic = problem.deterministic;
    params.row_stats = static_cast<float*>(row_stats.data());
    params.dq_accumulator = static_cast<float*>(dq_accumulator.data());
    params.turns = static_cast<int*>(turns.data());
    bool vector = vector_head_dim(problem);
    for (const ConstOperand& operand : {arguments.q, arguments.k, arguments.v, arguments.o, arguments.d_o,
                                        as_const(arguments.dq), as_const(arguments.dk), as_const(arguments.dv)}) {
      vector = vector && rows_aligned(operand, problem);
    }
    flash_sm80::backward_kernel(problem.dtype, params.shape.head_dim, vector).launch(params, stream_of(context));
  }

 private:
  static cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream.handle); }

  /// Of two operands of one head with `rows` rows: what its blocks read again and again.
  static std::int64_t streamed_bytes(const AttentionProblem& problem, std::int64_t rows) {
    return 2 * rows * problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype));
  }

  /// The same for aligned and other operands: both kinds of kernels have the same tiles.
  static flash_sm80::BackwardWorkspace workspace_of(const AttentionProblem& problem) {
    const auto& kernel = flash_sm80::backward_kernel(problem.dtype, static_cast<int>(problem.head_dim), true);
    return kernel.workspace(shape_of(problem), problem.deterministic);
  }

  std::string_view name_, description_;
};

}  // namespace

const Implementation& flash_cuda() {
  static const FlashCuda implementation("flash", "tiled online softmax, scores never in memory; the fastest path here");
  return implementation;
}

const Implementation& flash_sm80_cuda() {
  static const FlashCuda implementation("flash_sm80", "flash on mma.sync tensor cores, for sm_80 and later");
  return implementation;
}

}  // namespace warpmeter::attention
