#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/attention/detail/decode_backend.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention::detail {

namespace {

using cuda_decode::Element;
using cuda_decode::Params;

Element element_of(DType dtype) {
  return dtype == DType::bf16 ? Element::bf16 : dtype == DType::fp16 ? Element::fp16 : Element::fp32;
}
std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

/// Everything that the plan does not decide.
Params params_of(const DecodeProblem& problem, const KvView& view) {
  Params p;
  p.k = view.k;
  p.v = view.v;
  p.pages = view.pages;
  p.lengths = view.lengths;
  p.pages_stride = view.pages_stride;
  p.page_stride = view.page_stride;
  p.head_stride = view.head_stride;
  p.row_stride = view.row_stride;
  p.page_shift = view.paged ? std::countr_zero(static_cast<std::uint64_t>(view.page_size)) : -1;
  p.batch = static_cast<int>(view.batch);
  p.num_heads = static_cast<int>(problem.num_heads);
  p.num_kv_heads = static_cast<int>(view.num_kv_heads);
  p.tokens = static_cast<int>(problem.tokens);
  p.group = p.num_heads / p.num_kv_heads;
  p.rows = p.tokens * p.group;
  p.head_dim = static_cast<int>(view.head_dim);
  p.part_width = static_cast<int>(ceil_div(view.head_dim, 4) * 4);
  p.causal = problem.causal;
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(view.head_dim)));
  p.query_element = element_of(problem.dtype);
  p.cache_element = element_of(view.dtype);
  return p;
}

/// Queries as dense operands have them, for asking which kernel would run.
Params with_dense_queries(Params p) {
  p.q_token_stride = p.head_dim;
  p.q_head_stride = static_cast<std::int64_t>(p.tokens) * p.head_dim;
  p.q_batch_stride = p.num_heads * p.q_head_stride;
  return p;
}

/// Floats of the partial results: o, then m, then l.
struct Layout {
  std::size_t rows, o;
  Layout(const Params& p, std::int64_t parts)
      : rows(static_cast<std::size_t>(p.batch * p.num_kv_heads) * static_cast<std::size_t>(parts * p.rows)),
        o(rows * static_cast<std::size_t>(p.part_width)) {}
  [[nodiscard]] std::size_t bytes() const { return (o + 2 * rows) * sizeof(float); }
};

/// The fewest streams that come within a twentieth of the best use of the device: blocks of threads come in waves of
/// as many as fit on it, and the last wave should be full. A stream has at least 128 keys: two groups for each warp.
std::int64_t choose_splits(std::int64_t blocks_of_threads, std::int64_t slots, std::int64_t longest,
                           std::int64_t key_blocks) {
  constexpr std::int64_t kLeastKeys = 128, kMost = 128;
  const std::int64_t most = std::max<std::int64_t>(1, std::min({key_blocks, longest / kLeastKeys, kMost}));
  const auto used = [&](std::int64_t splits) {
    const auto work = static_cast<double>(blocks_of_threads * splits);
    return work / (std::ceil(work / static_cast<double>(slots)) * static_cast<double>(slots));
  };
  double best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, used(splits));
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    if (used(splits) >= 0.95 * best) return splits;
  }
  return most;
}

}  // namespace

DecodePlan plan_decode_cuda(Device device, const DecodeProblem& problem, const KvView& view,
                            const DecodeOptions& options) {
  constexpr std::int64_t kBlock = 64, kTwoPassBlock = 1024;
  if (options.block % cuda_decode::kWarpKeys != 0) {
    throw std::invalid_argument("block must be a multiple of 16 on CUDA, not " + std::to_string(options.block));
  }
  DecodePlan plan;
  plan.merge = options.merge;
  plan.deal = options.deal;
  plan.block = options.block != 0 ? options.block : options.merge == Merge::two_pass ? kTwoPassBlock : kBlock;
  const std::int64_t blocks = ceil_div(view.longest(), plan.block);
  const Params p = with_dense_queries(params_of(problem, view));
  plan.kernel = cuda_decode::kernel_name(p);
  if (options.merge == Merge::sequential) {
    plan.splits = 1;
  } else if (options.merge == Merge::two_pass) {
    plan.splits = blocks;  // every block is a partial result, made by a stream of its own
  } else if (options.splits != 0) {
    plan.splits = std::min(options.splits, blocks);
  } else {
    const DeviceGuard guard(device);
    const cuda_decode::Residency residency = cuda_decode::residency(p);
    plan.splits = choose_splits(view.batch * view.num_kv_heads * residency.row_blocks,
                                std::int64_t{properties(device).multiprocessors} * residency.blocks_a_processor,
                                view.longest(), blocks);
  }
  plan.parts = plan.splits;
  if (plan.parts > 1) plan.workspace_bytes = rounded(Layout(p, plan.parts).bytes());
  return plan;
}

void flash_decode_cuda(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                       const ConstOperand& q, const Operand& o, float* lse) {
  Params p = params_of(problem, view);
  p.q = q.data;
  p.q_batch_stride = q.batch_stride;
  p.q_head_stride = q.head_stride;
  p.q_token_stride = q.row_stride;
  p.o = o.data;
  p.o_batch_stride = o.batch_stride;
  p.o_head_stride = o.head_stride;
  p.o_token_stride = o.row_stride;
  p.lse = lse;
  p.parts = static_cast<int>(plan.parts);
  p.block = static_cast<int>(plan.block);
  p.round_robin = plan.deal == Deal::round_robin;
  WM_CHECK(p.batch < 65536 && p.num_kv_heads < 65536, "a grid has fewer than 65536 sequences and heads");
  if (plan.parts == 1) {
    cuda_decode::launch_streams(p, context.stream.handle);
    return;
  }
  const Layout layout(p, plan.parts);
  const Buffer buffer(context, layout.bytes());
  p.part_o = static_cast<float*>(buffer.data());
  p.part_m = p.part_o + layout.o;
  p.part_l = p.part_m + layout.rows;
  cuda_decode::launch_streams(p, context.stream.handle);
  cuda_decode::launch_merge(p, plan.merge == Merge::tree ? 0 : plan.merge == Merge::lse ? 1 : 2, context.stream.handle);
}

}  // namespace warpmeter::attention::detail
