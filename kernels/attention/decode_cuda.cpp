#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/attention/detail/decode_backend.hpp"
#include "kernels/attention/detail/decode_packed.hpp"
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

bool one_length(const KvView& view) {
  return std::all_of(view.host_lengths.begin(), view.host_lengths.end(),
                     [&](std::int64_t length) { return length == view.host_lengths.front(); });
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
  if (one_length(view)) p.uniform_length = static_cast<int>(view.host_lengths.front());
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

cuda_decode::MergeKind kind_of(Merge merge) {
  return merge == Merge::lse        ? cuda_decode::MergeKind::lse
         : merge == Merge::two_pass ? cuda_decode::MergeKind::two_pass
                                    : cuda_decode::MergeKind::tree;
}

/// Row blocks of all sequences and key/value heads.
std::int64_t row_blocks(const Params& p, const cuda_decode::Residency& r) {
  return std::int64_t{p.batch} * p.num_kv_heads * r.row_blocks;
}

/// Streams of each row block. More of them cost each block a microsecond or two for its part, fewer leave memory idle:
/// a power of two, so many that they fill the device once, and whole sequences where those fill it, unless the last
/// wave of them would be a small one.
std::int64_t choose_splits(const Params& p, const cuda_decode::Residency& r, std::int64_t processors,
                           std::int64_t longest, std::int64_t key_blocks) {
  constexpr std::int64_t kLeastKeys = 256, kMostKeys = 8192, kHalfPieceKeys = 4096, kRounds = 3, kMostPieces = 8;
  const std::int64_t blocks = row_blocks(p, r);
  const std::int64_t slots = processors * r.blocks_a_processor;
  const auto used = [&](std::int64_t splits) {  // of the waves' slots
    const std::int64_t waves = ceil_div(blocks * splits, slots);
    return static_cast<double>(blocks * splits) / static_cast<double>(waves * slots);
  };
  if (cuda_decode::on_tensor_cores(p) && 10 * blocks >= 9 * processors) {
    if (2 * blocks <= slots) return longest >= 2 * kHalfPieceKeys ? 2 : 1;
    const std::int64_t most = std::clamp<std::int64_t>(longest / kHalfPieceKeys, 1, kMostPieces);
    for (std::int64_t splits = 1; splits <= most; ++splits) {
      if (blocks * splits <= slots || used(splits) >= 0.9) return splits;
    }
    return most;
  }
  if (r.clusters) {
    std::int64_t fill = 1;
    while (2 * fill <= std::min<std::int64_t>(cuda_decode::kMostClusterParts, key_blocks) &&
           blocks * 2 * fill <= slots) {
      fill *= 2;
    }
    if (2 * fill > key_blocks || 4 * blocks * fill > slots) return fill;
  }
  const std::int64_t keys = std::clamp(ceil_div(longest * blocks, kRounds * slots), kLeastKeys, kMostKeys);
  return std::clamp<std::int64_t>(ceil_div(longest, keys), 1,
                                  std::min<std::int64_t>(key_blocks, cuda_decode::kMostLastBlockParts));
}

/// Whether the kernel for short sequences takes it, each block with a processor for itself.
bool is_short(Params p, const cuda_decode::Residency& r, const DecodePlan& plan, std::int64_t processors) {
  p.block = static_cast<int>(plan.block);
  p.round_robin = plan.deal == Deal::round_robin;
  p.parts = cuda_decode::kShortParts;
  p.join = Join::cluster;
  p.uniform_blocks = static_cast<int>(ceil_div(p.uniform_length, plan.block));
  return r.clusters && p.uniform_blocks >= p.parts && row_blocks(p, r) * p.parts <= processors &&
         cuda_decode::short_groups(p) > 0;
}

/// Whether each block of the only parts has a processor to itself, and its warps enough to do.
bool may_be_wide(const Params& p, const cuda_decode::Residency& r, std::int64_t processors, std::int64_t longest) {
  constexpr std::int64_t kLeastKeys = 512;
  return p.shape == DecodeBlock::usual && p.parts == 1 && row_blocks(p, r) <= processors && longest >= kLeastKeys &&
         cuda_decode::on_tensor_cores(p);
}

/// Groups of keys that a warp has of the longest stream, at most.
int groups_a_warp(std::int64_t longest, const DecodePlan& plan, int warps) {
  constexpr std::int64_t kEnough = 8;
  const std::int64_t blocks = ceil_div(ceil_div(longest, plan.block), plan.parts);
  const std::int64_t keys = std::min(blocks * plan.block, longest);
  return static_cast<int>(std::min(kEnough, ceil_div(ceil_div(keys, cuda_decode::kWarpKeys), warps)));
}

/// Where p.parts of a row meet.
Join choose_join(const Params& p, const cuda_decode::Residency& r, std::int64_t slots, std::int64_t longest) {
  constexpr std::int64_t kMostRows = 1024;  // partial rows that one block can read without being waited for
  // A large cluster finds its place on neighbouring processors alone: with much to read that costs more than the end.
  // With many rows it is the end that costs.
  constexpr std::int64_t kLargeCluster = 8, kMostKeysOfOne = 512, kFewRows = 128;
  if (p.parts == 1) return Join::none;
  const std::int64_t blocks = row_blocks(p, r);
  const std::int64_t rows = std::min(p.rows, r.row_block_rows);
  const bool near = p.parts < kLargeCluster || longest <= p.parts * kMostKeysOfOne || rows * p.parts > kFewRows;
  if (near && r.clusters && p.parts <= cuda_decode::kMostClusterParts &&
      std::has_single_bit(static_cast<unsigned>(p.parts)) && blocks * p.parts <= slots) {
    return Join::cluster;
  }
  if (cuda_decode::on_tensor_cores(p) && p.parts <= cuda_decode::kMostLastBlockParts && rows * p.parts <= kMostRows &&
      blocks <= cuda_decode::kMostCounters) {
    return Join::last_block;
  }
  return Join::kernel;
}

static_assert(kCudaWarpKeys == cuda_decode::kWarpKeys);

}  // namespace

DecodePlan plan_decode_cuda(Device device, const DecodeProblem& problem, const KvView& view,
                            const DecodeOptions& options) {
  constexpr std::int64_t kBlock = 64, kTwoPassBlock = 1024;
  DecodePlan plan;
  plan.merge = options.merge;
  plan.deal = options.deal;
  plan.block = options.block != 0 ? options.block : options.merge == Merge::two_pass ? kTwoPassBlock : kBlock;
  if (options.merge == Merge::two_pass) plan.block = two_pass_block(view.longest(), plan.block);
  const std::int64_t blocks = ceil_div(view.longest(), plan.block);
  Params p = with_dense_queries(params_of(problem, view));
  plan.kernel = cuda_decode::kernel_name(p);
  if (options.merge == Merge::sequential) {
    plan.splits = 1;
  } else if (options.merge == Merge::two_pass) {
    plan.splits = blocks;  // every block is a partial result, made by a stream of its own
  } else if (options.splits != 0) {
    plan.splits = std::min(options.splits, blocks);
  }
  const DeviceGuard guard(device);
  cuda_decode::Residency residency = cuda_decode::residency(p);
  if (residency.blocks_a_processor == 0 && cuda_decode::on_tensor_cores(p)) {
    p.shape = DecodeBlock::small;
    residency = cuda_decode::residency(p);
  }
  const DeviceProperties facts = properties(device);
  const std::int64_t processors = facts.multiprocessors;
  const std::int64_t slots = processors * residency.blocks_a_processor;
  if (options.merge != Merge::sequential && options.merge != Merge::two_pass && options.splits == 0) {
    plan.splits = is_short(p, residency, plan, processors)
                      ? cuda_decode::kShortParts
                      : choose_splits(p, residency, processors, view.longest(), blocks);
  }
  plan.parts = plan.splits;
  p.parts = static_cast<int>(plan.parts);
  p.join = choose_join(p, residency, slots, view.longest());
  if (p.join == Join::cluster && cuda_decode::active_clusters(p) < row_blocks(p, residency)) p.join = Join::last_block;
  plan.join = p.join;
  if (may_be_wide(p, residency, processors, view.longest())) {
    p.shape = DecodeBlock::wide;
    if (!cuda_decode::has_blocks(p)) p.shape = DecodeBlock::usual;
  }
  plan.block_shape = p.shape;
  // While what passes is not many times the cache, lines that others left there, written ones above all, can stay. Row
  // blocks of the same keys find them there, and so does the next token where there is room for all.
  constexpr double kMostCaches = 4.6;
  const auto cache_bytes = static_cast<double>(facts.last_level_cache_bytes);
  plan.pass_l2 = residency.row_blocks == 1 && view.bytes() > cache_bytes && view.bytes() <= kMostCaches * cache_bytes;
  if (plan.join == Join::last_block || plan.join == Join::kernel)
    plan.workspace_bytes = rounded(Layout(p, plan.parts).bytes());
  plan.packed = options.splits == 0 && options.merge == Merge::tree && options.deal == Deal::contiguous &&
                packs(problem, view, processors);
  if (plan.packed) {
    plan.kernel = packed_kernel(problem, view);
    plan.workspace_bytes = packed_bytes(problem, view);
  }
  return plan;
}

void flash_decode_cuda(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                       const ConstOperand& q, const Operand& o, float* lse) {
  if (plan.packed && flash_decode_packed(context, problem, view, q, o, lse)) return;
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
  p.uniform_blocks = static_cast<int>(ceil_div(p.uniform_length, p.block));
  p.uniform_share = p.uniform_blocks / p.parts;
  WM_CHECK(p.batch < 65536 && p.num_kv_heads < 65536, "a grid has fewer than 65536 sequences and heads");
  p.merge = kind_of(plan.merge);
  p.join = plan.join;
  p.shape = plan.block_shape;
  p.stages = groups_a_warp(view.longest(), plan, cuda_decode::warps_of(p.shape, p.head_dim));
  p.pass_l2 = plan.pass_l2;
  p.short_groups = cuda_decode::short_groups(p);
  if (p.join != Join::none && !cuda_decode::on_tensor_cores(p)) p.join = Join::kernel;  // queries off their 16 bytes
  if (p.join == Join::none || p.join == Join::cluster) {
    cuda_decode::launch_streams(p, context.stream.handle);
    return;
  }
  const Layout layout(p, plan.parts);
  const Buffer buffer(context, layout.bytes());
  p.part_o = static_cast<float*>(buffer.data());
  p.part_m = p.part_o + layout.o;
  p.part_l = p.part_m + layout.rows;
  if (p.join == Join::last_block) {
    const int rows = cuda_decode::row_block_rows(p);
    p.counters = cuda_decode::next_counters(p.batch * p.num_kv_heads * ((p.rows + rows - 1) / rows));
  }
  cuda_decode::launch_streams(p, context.stream.handle);
  if (p.join == Join::kernel) cuda_decode::launch_merge(p, context.stream.handle);
}

}  // namespace warpmeter::attention::detail
