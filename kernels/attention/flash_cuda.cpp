#include "kernels/attention/flash_cuda.hpp"

#include <cmath>
#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"
#include "kernels/attention/cuda/row_ops.hpp"
#include "kernels/attention/detail/flash_hopper.hpp"
#include "kernels/attention/detail/operand_rows.hpp"
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

/// Whether the kernels with 16-byte copies can take the problem at all; rows_aligned() of the operands comes on top.
bool vector_head_dim(const AttentionProblem& problem) {
  return problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype)) % 16 == 0;
}

/// What LSE lost when it was rounded to fp32, a float a query row: with it gradients of fp32 are right for large
/// scores.
class SavedLseRest final : public Saved {
 public:
  SavedLseRest(const Context& context, std::size_t bytes) : buffer_(context, bytes) {}
  [[nodiscard]] float* data() const { return static_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

std::int64_t lse_rest_bytes(const AttentionProblem& problem) {
  return is_16bit(problem.dtype) ? 0 : problem.lse_elements() * static_cast<std::int64_t>(sizeof(float));
}

/// Where a forward may take Hopper's kernels (detail/flash_hopper.hpp).
enum class Hopper { never, where_supported, only };

class FlashCuda final : public Implementation {
 public:
  /// `shared_limit` 0: the device's.
  FlashCuda(std::string_view name, std::string_view description, bool two_pass, Hopper hopper,
            std::size_t shared_limit = 0)
      : name_(name), description_(description), two_pass_(two_pass), hopper_(hopper), shared_limit_(shared_limit) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] DeviceKind device_kind() const override { return DeviceKind::cuda; }
  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] std::string_view dtypes() const override {
    return hopper_ == Hopper::only ? "bf16,fp16" : "fp32,tf32,bf16,fp16";
  }

  [[nodiscard]] std::optional<std::string> unsupported(const AttentionProblem& problem, Pass /*pass*/) const override {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    if (hopper_ == Hopper::only) return flash_hopper::unsupported(problem);
    return std::nullopt;
  }

  [[nodiscard]] std::string kernel(const AttentionProblem& problem, Pass pass) const override {
    const int head_dim = static_cast<int>(problem.head_dim);
    const bool vector = vector_head_dim(problem);
    if (pass == Pass::forward && takes_hopper(problem)) return flash_hopper::kernel(problem);
    return pass == Pass::forward ? flash_sm80::forward_kernel(problem.dtype, head_dim, vector, shared_limit()).name
                                 : backward_kernel(problem, vector).name;
  }

  [[nodiscard]] ComputePath compute_path(const AttentionProblem& problem, Pass pass) const override {
    if (problem.dtype == DType::fp32) return ComputePath::tf32x3;
    // 16-bit operands are exact in tf32, and the two passes have tf32 products for all types, but for 16-bit scores.
    if (two_pass_ && pass == Pass::backward) return ComputePath::tf32;
    return Implementation::compute_path(problem, pass);
  }

  [[nodiscard]] MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    MemoryPlan memory;
    if (for_backward) {
      const auto bytes = workspace_of(problem);
      memory.saved = rounded(lse_rest_bytes(problem));
      memory.forward_peak = memory.saved;
      memory.backward_peak =
          memory.saved + rounded(bytes.row_stats) + rounded(bytes.dq_accumulator) + rounded(bytes.turns);
    }
    return memory;
  }

  [[nodiscard]] std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                               const ForwardArguments& arguments, bool for_backward) const override {
    const Range range("ATTN_FLASH_FWD");
    const DeviceGuard guard(context.device());
    if (takes_hopper(problem) && flash_hopper::forward(context, problem, arguments)) {
      zero_unseeing_queries(context, problem, arguments.o);
      return nullptr;
    }
    std::unique_ptr<SavedLseRest> saved;
    if (for_backward && lse_rest_bytes(problem) > 0) {
      saved = std::make_unique<SavedLseRest>(context, static_cast<std::size_t>(lse_rest_bytes(problem)));
    }
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
    params.vector = vector;
    if (saved != nullptr) params.lse_rest = saved->data();
    flash_sm80::forward_kernel(problem.dtype, params.shape.head_dim, vector, shared_limit())
        .launch(params, stream_of(context));
    zero_unseeing_queries(context, problem, arguments.o);
    return saved;
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* saved) const override {
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
    if (saved != nullptr) params.lse_rest = static_cast<const SavedLseRest*>(saved)->data();
    params.deterministic = problem.deterministic;
    params.row_stats = static_cast<float*>(row_stats.data());
    params.dq_accumulator = static_cast<float*>(dq_accumulator.data());
    params.turns = static_cast<int*>(turns.data());
    bool vector = vector_head_dim(problem);
    for (const ConstOperand& operand : {arguments.q, arguments.k, arguments.v, arguments.o, arguments.d_o,
                                        as_const(arguments.dq), as_const(arguments.dk), as_const(arguments.dv)}) {
      vector = vector && rows_aligned(operand, problem);
    }
    params.vector = vector;
    backward_kernel(problem, vector).launch(params, stream_of(context));
    zero_unseeing_queries(context, problem, arguments.dq);
  }

 private:
  static cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream.handle); }

  /// The kernels multiply these rows where a tile has others too: P = 0 times a V or K that may be infinite.
  static void zero_unseeing_queries(const Context& context, const AttentionProblem& problem, const Operand& rows) {
    if (problem.unseeing_queries() == 0) return;
    detail::cuda_row_ops(problem.dtype)
        .zero_rows(rows, problem.batch, problem.num_heads, problem.unseeing_queries(), problem.head_dim,
                   context.stream);
  }

  [[nodiscard]] bool takes_hopper(const AttentionProblem& problem) const {
    return hopper_ != Hopper::never && !flash_hopper::unsupported(problem).has_value();
  }

  /// Of two operands of one head with `rows` rows: what its blocks read again and again.
  static std::int64_t streamed_bytes(const AttentionProblem& problem, std::int64_t rows) {
    return 2 * rows * problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype));
  }

  /// The same for aligned and other operands: both kinds of kernels have the same tiles.
  [[nodiscard]] flash_sm80::BackwardWorkspace workspace_of(const AttentionProblem& problem) const {
    return backward_kernel(problem, true).workspace(shape_of(problem), problem.deterministic);
  }

  [[nodiscard]] const flash_sm80::BackwardKernel& backward_kernel(const AttentionProblem& problem, bool vector) const {
    const int head_dim = static_cast<int>(problem.head_dim);
    const std::size_t limit = shared_limit();
    return two_pass_ ? flash_sm80::two_pass_kernel(problem.dtype, head_dim, limit)
                     : flash_sm80::backward_kernel(problem.dtype, head_dim, vector, limit);
  }

  [[nodiscard]] std::size_t shared_limit() const {
    return shared_limit_ > 0 ? shared_limit_ : flash_sm80::shared_memory_limit();
  }

  std::string_view name_, description_;
  bool two_pass_;
  Hopper hopper_;
  std::size_t shared_limit_;
};

}  // namespace

const Implementation& flash_cuda() {
  static const FlashCuda implementation("flash", "tiled online softmax, scores never in memory; the fastest path here",
                                        false, Hopper::where_supported);
  return implementation;
}

const Implementation& flash_sm80_cuda() {
  static const FlashCuda implementation("flash_sm80", "flash on mma.sync tensor cores, for sm_80 and later", false,
                                        Hopper::never);
  return implementation;
}

const Implementation& flash_sm90_cuda() {
  static const FlashCuda implementation("flash_sm90", "flash forward on Hopper's wgmma and TMA; backward of flash_sm80",
                                        false, Hopper::only);
  return implementation;
}

const Implementation& flash_two_pass_cuda() {
  static const FlashCuda implementation("flash_two_pass", "flash forward; backward in two passes: dQ, then dK and dV",
                                        true, Hopper::where_supported);
  return implementation;
}

std::unique_ptr<Implementation> make_flash_sm80_cuda(bool two_pass, std::size_t shared_limit) {
  return std::make_unique<FlashCuda>(two_pass ? "flash_two_pass" : "flash_sm80", "flash within less shared memory",
                                     two_pass, Hopper::never, shared_limit);
}

}  // namespace warpmeter::attention
