#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/attention/detail/flash_dispatch.hpp"
#include "kernels/attention/detail/operand_rows.hpp"
#include "kernels/attention/flash.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention {
namespace {

using namespace flash_detail;  // NOLINT: the kernels' own vocabulary

std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}

Shape shape_of(const AttentionProblem& problem) {
  Shape shape;
  shape.seq_len = problem.seq_len;
  shape.kv_len = problem.kv_len;
  shape.head_dim = problem.head_dim;
  shape.causal = problem.causal;
  shape.element = problem.dtype == DType::bf16   ? Element::bf16
                  : problem.dtype == DType::fp16 ? Element::fp16
                                                 : Element::fp32;
  shape.scale = static_cast<float>(problem.scale());
  return shape;
}

/// Queries a block: fewer than the kernels could take when there would be too few blocks for the threads. A row's
/// result does not depend on it.
std::int64_t query_block(const AttentionProblem& problem) {
  constexpr std::int64_t kSmallest = 16;
  const std::int64_t heads = problem.batch * problem.num_heads;
  std::int64_t block = kQueryBlock;
  while (block > kSmallest && heads * blocks_of(problem.seq_len, block) < 2 * num_threads()) block /= 2;
  return block;
}

/// Keys a block of the backward. It decides the order of dQ's sum, so the number of threads has no say.
std::int64_t key_block_size(const AttentionProblem& problem) {
  constexpr std::int64_t kSmallest = 32;
  constexpr std::int64_t kWantedBlocks = 64;
  const std::int64_t heads = problem.batch * problem.num_kv_heads;
  std::int64_t block = problem.head_dim > 160 ? kKeyBlock / 2 : kKeyBlock;  // two packed copies and dK, dV stay in L2
  while (block > kSmallest && heads * blocks_of(problem.kv_len, block) < kWantedBlocks) block /= 2;
  return block;
}

std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

/// One piece of scratch for each thread that a loop over `tasks` can use.
class Scratch {
 public:
  Scratch(std::int64_t floats, std::int64_t tasks)
      : stride_(rounded(static_cast<std::size_t>(floats) * sizeof(float))),
        threads_(static_cast<std::size_t>(std::min<std::int64_t>(tasks, num_threads()))) {}
  [[nodiscard]] std::size_t bytes() const { return stride_ * threads_; }
  [[nodiscard]] float* of(const Buffer& buffer, int worker) const {
    return reinterpret_cast<float*>(static_cast<char*>(buffer.data()) + stride_ * static_cast<std::size_t>(worker));
  }

 private:
  std::size_t stride_, threads_;
};

/// The loops of one problem and the memory that they take.
struct Plan {
  const Kernels& kernels;
  Shape shape;
  std::int64_t query_heads, kv_heads;  ///< batch entries included
  std::int64_t query_block, query_blocks;
  std::int64_t key_block, key_blocks;
  std::int64_t backward_query_blocks;

  Plan(const Kernels& kernels_to_use, const AttentionProblem& problem)
      : kernels(kernels_to_use),
        shape(shape_of(problem)),
        query_heads(problem.batch * problem.num_heads),
        kv_heads(problem.batch * problem.num_kv_heads),
        query_block(attention::query_block(problem)),
        query_blocks(blocks_of(problem.seq_len, query_block)),
        key_block(key_block_size(problem)),
        key_blocks(blocks_of(problem.kv_len, key_block)),
        backward_query_blocks(blocks_of(problem.seq_len, kBackwardQueryBlock)) {}

  [[nodiscard]] Scratch forward_scratch() const { return {kernels.forward_scratch(shape), query_heads * query_blocks}; }
  [[nodiscard]] Scratch query_gradient_scratch() const {
    return {kernels.query_gradient_scratch(shape), query_heads * query_blocks};
  }
  [[nodiscard]] Scratch key_block_scratch() const {
    return {kernels.key_block_scratch(shape, key_block), kv_heads * key_blocks};
  }
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(query_heads * shape.seq_len) * sizeof(float);
  }
  [[nodiscard]] std::size_t turn_bytes() const {
    return static_cast<std::size_t>(query_heads * backward_query_blocks) * sizeof(std::int32_t);
  }
  /// dQ in fp32 where it is 16-bit and summed over several key blocks.
  [[nodiscard]] std::size_t dq_sum_bytes() const {
    return shape.element == Element::fp32 || key_blocks == 1
               ? 0
               : static_cast<std::size_t>(query_heads * shape.seq_len * shape.head_dim) * sizeof(float);
  }
};

/// Row 0 of a head.
Rows rows_of(const ConstOperand& operand, const AttentionProblem& problem, std::int64_t batch, std::int64_t head) {
  const auto offset =
      (batch * operand.batch_stride + head * operand.head_stride) * static_cast<std::int64_t>(size_of(problem.dtype));
  return {static_cast<const char*>(operand.data) + offset, operand.row_stride};
}
MutableRows rows_of(const Operand& operand, const AttentionProblem& problem, std::int64_t batch, std::int64_t head) {
  const auto offset =
      (batch * operand.batch_stride + head * operand.head_stride) * static_cast<std::int64_t>(size_of(problem.dtype));
  return {static_cast<char*>(operand.data) + offset, operand.row_stride};
}

/// Calls body(batch, head, first row, rows, worker) for every block of queries, the last ones first: under the causal
/// mask they are the longest.
template <class Body>
void for_query_blocks(const AttentionProblem& problem, const Plan& plan, Body&& body) {
  parallel_for(plan.query_heads * plan.query_blocks, [&](std::int64_t index, int worker) {
    const std::int64_t head = index % plan.query_heads;
    const std::int64_t first = (plan.query_blocks - 1 - index / plan.query_heads) * plan.query_block;
    body(head / problem.num_heads, head % problem.num_heads, first, std::min(plan.query_block, problem.seq_len - first),
         worker);
  });
}

/// What rounding LSE to fp32 left behind, one float a query.
class SavedLse final : public Saved {
 public:
  SavedLse(const Context& context, std::size_t bytes) : buffer_(context, bytes) {}
  [[nodiscard]] float* data() const { return static_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

class FlashCpu final : public Implementation {
 public:
  FlashCpu(bool two_pass, ChooseKernels choose) : two_pass_(two_pass), choose_(choose) {}

  [[nodiscard]] std::string_view name() const override { return two_pass_ ? "flash_two_pass" : "flash"; }
  [[nodiscard]] DeviceKind device_kind() const override { return DeviceKind::cpu; }
  [[nodiscard]] std::string_view description() const override {
    return two_pass_ ? "flash forward; backward in two passes, dQ and then dK and dV"
                     : "tiled online softmax, scores never in memory; one-pass recomputing backward";
  }
  [[nodiscard]] std::string_view dtypes() const override { return "fp32,bf16,fp16"; }

  [[nodiscard]] std::optional<std::string> unsupported(const AttentionProblem& problem, Pass /*pass*/) const override {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    if (problem.dtype == DType::tf32) return "tf32 is a CUDA compute mode";
    return std::nullopt;
  }

  [[nodiscard]] std::string kernel(const AttentionProblem& problem, Pass /*pass*/) const override {
    return std::string(name()) + "_cpu_" + choose_(problem.dtype).isa;
  }

  /// bf16 has kernels of its own only where the processor multiplies it.
  [[nodiscard]] ComputePath compute_path(const AttentionProblem& problem, Pass /*pass*/) const override {
    const bool native = problem.dtype == DType::bf16 && &choose_(DType::bf16) != &choose_(DType::fp32);
    return native ? ComputePath::half : ComputePath::fp32;
  }

  [[nodiscard]] MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const Plan plan(choose_(problem.dtype), problem);
    MemoryPlan memory;
    memory.forward_peak = rounded(plan.forward_scratch().bytes());
    if (for_backward) {
      memory.saved = rounded(plan.row_bytes());
      memory.forward_peak += memory.saved;
      memory.backward_peak = memory.saved + 3 * rounded(plan.row_bytes()) + rounded(backward_scratch_bytes(plan));
      if (!two_pass_) memory.backward_peak += rounded(plan.turn_bytes()) + rounded(plan.dq_sum_bytes());
    }
    return memory;
  }

  [[nodiscard]] std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                               const ForwardArguments& arguments, bool for_backward) const override {
    const Range range("ATTN_FLASH_FWD");
    const Plan plan(choose_(problem.dtype), problem);
    const Scratch scratch = plan.forward_scratch();
    auto saved = for_backward ? std::make_unique<SavedLse>(context, plan.row_bytes()) : nullptr;
    const Buffer buffer(context, scratch.bytes());
    for_query_blocks(problem, plan,
                     [&](std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t rows, int worker) {
                       const std::int64_t kv_head = head / problem.group_size();
                       ForwardBlock block;
                       block.shape = plan.shape;
                       block.q = rows_of(arguments.q, problem, batch, head);
                       block.k = rows_of(arguments.k, problem, batch, kv_head);
                       block.v = rows_of(arguments.v, problem, batch, kv_head);
                       block.o = rows_of(arguments.o, problem, batch, head);
                       const std::int64_t start = (batch * problem.num_heads + head) * problem.seq_len;
                       block.lse = arguments.lse + start;
                       if (saved != nullptr) block.lse_rest = saved->data() + start;
                       block.first = first;
                       block.rows = rows;
                       block.scratch = scratch.of(buffer, worker);
                       plan.kernels.forward(block);
                     });
    zero_unseeing_queries(problem, arguments.o);
    return saved;
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* saved) const override {
    const Range range("ATTN_FLASH_BWD");
    const Plan plan(choose_(problem.dtype), problem);
    const Buffer delta(context, plan.row_bytes());
    const Buffer row_lse(context, plan.row_bytes());
    const Buffer row_rest(context, plan.row_bytes());
    const Buffer turns(context, two_pass_ ? 0 : plan.turn_bytes());
    const Buffer dq_sum(context, two_pass_ ? 0 : plan.dq_sum_bytes());
    const Buffer scratch(context, backward_scratch_bytes(plan));

    std::vector<BackwardHead> heads(static_cast<std::size_t>(plan.query_heads));
    for (std::int64_t index = 0; index < plan.query_heads; ++index) {
      const std::int64_t batch = index / problem.num_heads;
      const std::int64_t head = index % problem.num_heads;
      BackwardHead& entry = heads[static_cast<std::size_t>(index)];
      entry.q = rows_of(arguments.q, problem, batch, head);
      entry.d_o = rows_of(arguments.d_o, problem, batch, head);
      entry.delta = static_cast<const float*>(delta.data()) + index * problem.seq_len;
      entry.row_lse = static_cast<const float*>(row_lse.data()) + index * problem.seq_len;
      entry.row_rest = static_cast<const float*>(row_rest.data()) + index * problem.seq_len;
      entry.dq = rows_of(arguments.dq, problem, batch, head);
      if (!two_pass_) {
        entry.turn = static_cast<std::int32_t*>(turns.data()) + index * plan.backward_query_blocks;
        if (dq_sum.bytes() > 0) {
          entry.dq_sum = static_cast<float*>(dq_sum.data()) + index * problem.seq_len * problem.head_dim;
        }
      }
    }
    if (!two_pass_) std::memset(turns.data(), 0, plan.turn_bytes());

    DeltaBlock rows;
    if (saved != nullptr) rows.lse_rest = static_cast<const SavedLse*>(saved)->data();
    rows.delta = static_cast<float*>(delta.data());
    rows.row_lse = static_cast<float*>(row_lse.data());
    rows.row_rest = static_cast<float*>(row_rest.data());
    compute_delta(problem, plan, arguments, rows);
    if (two_pass_) query_gradients(problem, plan, arguments, heads, scratch);
    key_gradients(problem, plan, arguments, heads, scratch);
    zero_unseeing_queries(problem, arguments.dq);
  }

 private:
  [[nodiscard]] std::size_t backward_scratch_bytes(const Plan& plan) const {
    const std::size_t keys = plan.key_block_scratch().bytes();
    return two_pass_ ? std::max(keys, plan.query_gradient_scratch().bytes()) : keys;
  }

  /// `of_all`: the arrays of all rows.
  static void compute_delta(const AttentionProblem& problem, const Plan& plan, const BackwardArguments& arguments,
                            const DeltaBlock& of_all) {
    for_query_blocks(problem, plan,
                     [&](std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t rows, int) {
                       const std::int64_t start = (batch * problem.num_heads + head) * problem.seq_len;
                       DeltaBlock block;
                       block.shape = plan.shape;
                       block.o = rows_of(arguments.o, problem, batch, head);
                       block.d_o = rows_of(arguments.d_o, problem, batch, head);
                       block.lse = arguments.lse + start;
                       if (of_all.lse_rest != nullptr) block.lse_rest = of_all.lse_rest + start;
                       block.delta = of_all.delta + start;
                       block.row_lse = of_all.row_lse + start;
                       block.row_rest = of_all.row_rest + start;
                       block.first = first;
                       block.rows = rows;
                       plan.kernels.delta(block);
                     });
  }

  static void query_gradients(const AttentionProblem& problem, const Plan& plan, const BackwardArguments& arguments,
                              const std::vector<BackwardHead>& heads, const Buffer& buffer) {
    const Scratch scratch = plan.query_gradient_scratch();
    for_query_blocks(problem, plan,
                     [&](std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t rows, int worker) {
                       const BackwardHead& of = heads[static_cast<std::size_t>(batch * problem.num_heads + head)];
                       QueryGradientBlock block;
                       block.shape = plan.shape;
                       block.q = of.q;
                       block.k = rows_of(arguments.k, problem, batch, head / problem.group_size());
                       block.v = rows_of(arguments.v, problem, batch, head / problem.group_size());
                       block.d_o = of.d_o;
                       block.delta = of.delta;
                       block.row_lse = of.row_lse;
                       block.row_rest = of.row_rest;
                       block.dq = of.dq;
                       block.first = first;
                       block.rows = rows;
                       block.scratch = scratch.of(buffer, worker);
                       plan.kernels.query_gradient(block);
                     });
  }

  /// In order of keys, as dQ's turns ask: parallel_for starts an index only after all smaller ones. The first key
  /// blocks are also the longest under the causal mask.
  static void key_gradients(const AttentionProblem& problem, const Plan& plan, const BackwardArguments& arguments,
                            const std::vector<BackwardHead>& heads, const Buffer& buffer) {
    const Scratch scratch = plan.key_block_scratch();
    parallel_for(plan.kv_heads * plan.key_blocks, [&](std::int64_t index, int worker) {
      const std::int64_t batch = index % plan.kv_heads / problem.num_kv_heads;
      const std::int64_t kv_head = index % plan.kv_heads % problem.num_kv_heads;
      KeyBlock block;
      block.shape = plan.shape;
      block.k = rows_of(arguments.k, problem, batch, kv_head);
      block.v = rows_of(arguments.v, problem, batch, kv_head);
      block.dk = rows_of(arguments.dk, problem, batch, kv_head);
      block.dv = rows_of(arguments.dv, problem, batch, kv_head);
      block.first = index / plan.kv_heads * plan.key_block;
      block.keys = std::min(plan.key_block, problem.kv_len - block.first);
      block.key_block = plan.key_block;
      block.heads = heads.data() + batch * problem.num_heads + kv_head * problem.group_size();
      block.num_heads = problem.group_size();
      block.scratch = scratch.of(buffer, worker);
      plan.kernels.key_block(block);
    });
  }

  bool two_pass_;
  ChooseKernels choose_;
};

}  // namespace

std::unique_ptr<Implementation> flash_detail::make_flash_cpu(bool two_pass, ChooseKernels choose) {
  return std::make_unique<FlashCpu>(two_pass, choose);
}

const Implementation& flash_cpu() {
  static const FlashCpu implementation(false, choose_kernels);
  return implementation;
}

const Implementation& flash_two_pass_cpu() {
  static const FlashCpu implementation(true, choose_kernels);
  return implementation;
}

}  // namespace warpmeter::attention
