#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention/detail/decode_backend.hpp"
#include "kernels/attention/detail/decode_kernels.hpp"
#include "kernels/attention/detail/flash_dispatch.hpp"
#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/device.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention::detail {

namespace {

using decode_detail::Bf16Products;
using decode_detail::Element;
using decode_detail::kBf16Step;
using decode_detail::Kernels;
using decode_detail::kLeastBf16Rows;
using decode_detail::kMostBf16Rows;
using decode_detail::kMostRows;
using decode_detail::kRowPadding;
using decode_detail::Shape;
using decode_detail::Stream;

const Kernels& kernels() {
  static const Kernels chosen = [] {
#if defined(__x86_64__)
    switch (cpu_isa()) {
      case CpuIsa::avx512:
        return Kernels{"avx512", attention::avx512::decode_scratch, attention::avx512::decode_stream};
      case CpuIsa::avx2:
        return Kernels{"avx2", attention::avx2::decode_scratch, attention::avx2::decode_stream};
      case CpuIsa::generic:
        break;
    }
#endif
    return Kernels{"generic", attention::generic::decode_scratch, attention::generic::decode_stream};
  }();
  return chosen;
}

/// Null where this machine has no products of bf16, or WARPMETER_CPU_ISA rules them out.
const Bf16Products* bf16_products() {
#if defined(__x86_64__)
  static constexpr Bf16Products kAvx512Bf16 = {avx512_bf16::decode_bf16_scores, avx512_bf16::decode_bf16_values};
  // The flash forward on bf16 has asked already; what has AMX has AVX512_BF16 as well.
  static const std::string_view forward = flash_detail::choose_kernels(DType::bf16).isa;
  if (forward == "avx512_bf16" || forward == "amx_bf16") return &kAvx512Bf16;
#endif
  return nullptr;
}

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

constexpr double kEvenEnough = 0.9;
/// The part of the time that the threads work when they have `tasks` equal tasks.
double even_share(std::int64_t tasks) {
  const auto threads = static_cast<double>(num_threads());
  const auto work = static_cast<double>(tasks);
  return work / (threads * std::ceil(work / threads));
}

/// Whether a step's keys and values come from memory: the next step finds little of them where the cache is not larger
/// than they are, since it is read in the same order again.
bool beyond_cache(const KvView& view) {
  static const auto cache = static_cast<double>(properties(Device::cpu()).last_level_cache_bytes);
  return view.bytes() > 0.75 * cache;
}

/// Query rows of a key/value head.
std::int64_t rows_of(const DecodeProblem& problem, const KvView& view) {
  return problem.tokens * (problem.num_heads / view.num_kv_heads);
}

/// Whether the products are of bf16 rows as they lie.
bool multiplies_bf16(const DecodeProblem& problem, const KvView& view) {
  const std::int64_t rows = rows_of(problem, view);
  return problem.dtype == DType::bf16 && view.dtype == DType::bf16 && view.head_dim % kBf16Step == 0 &&
         rows >= kLeastBf16Rows && rows <= kMostBf16Rows && bf16_products() != nullptr;
}

/// Whether a stream may walk several heads. Pages hold a head's rows apart: head by head they were read at a third of
/// the memory's speed, page by page at its whole (dev/decode_cpu.md).
bool heads_together(const DecodeProblem& problem, const KvView& view) {
  constexpr std::int64_t kMostRowsTogether = 8;  // with more it is not memory that takes the time
  return view.paged && rows_of(problem, view) <= kMostRowsTogether;
}
/// As many heads a stream as leave the threads evenly busy.
std::int64_t heads_a_stream(const DecodeProblem& problem, const KvView& view, const DecodePlan& plan) {
  if (!heads_together(problem, view)) return 1;
  for (std::int64_t heads = view.num_kv_heads; heads > 1; --heads) {
    if (view.num_kv_heads % heads != 0) continue;
    if (even_share(view.batch * plan.splits * view.num_kv_heads / heads) >= kEvenEnough) return heads;
  }
  return 1;
}

/// The memory of one call, as one block: partial results, what is merged of them, scratch of the threads.
struct Layout {
  std::int64_t rows;        ///< query rows of a key/value head
  std::int64_t row_blocks;  ///< of at most kMostRows
  std::int64_t block_rows;  ///< rows of a full one
  std::int64_t heads;       ///< sequences x key/value heads
  std::int64_t together;    ///< heads that a stream walks
  std::int64_t padded;
  std::int64_t threads;
  std::size_t part_o, part_ml, merged,
      scratch;  ///< floats: partial o, partial m (and l), merged o, scratch of a thread

  Layout(const DecodeProblem& problem, const KvView& view, const DecodePlan& plan, const Shape& shape) {
    rows = rows_of(problem, view);
    row_blocks = ceil_div(rows, kMostRows);
    block_rows = ceil_div(rows, row_blocks);
    heads = view.batch * view.num_kv_heads;
    together = heads_a_stream(problem, view, plan);
    padded = ceil_div(view.head_dim, kRowPadding) * kRowPadding;
    threads = std::min<std::int64_t>(num_threads(), heads * row_blocks * plan.splits);
    part_o = static_cast<std::size_t>(heads * plan.parts * rows * padded);
    part_ml = static_cast<std::size_t>(ceil_div(heads * plan.parts * rows, kRowPadding) * kRowPadding);
    merged = static_cast<std::size_t>(threads * rows * padded);
    scratch =
        static_cast<std::size_t>(ceil_div(kernels().scratch(shape, block_rows, together), kRowPadding) * kRowPadding);
  }
  [[nodiscard]] std::size_t floats() const {
    return part_o + 2 * part_ml + merged + scratch * static_cast<std::size_t>(threads);
  }
};

/// Measured (dev/decode_cpu.md): nearer, and a core waits for memory; farther, and the requests fill the buffers that
/// the reads need, too.
std::int64_t ahead_bytes(DType cached) {
  return cached == DType::fp32 ? 4096 : 6144;
}

Shape shape_of(const DecodeProblem& problem, const KvView& view, const DecodePlan& plan) {
  Shape shape;
  shape.query_element = element_of(problem.dtype);
  shape.cache_element = element_of(view.dtype);
  shape.head_dim = view.head_dim;
  shape.tokens = problem.tokens;
  shape.group = problem.num_heads / view.num_kv_heads;
  shape.block = plan.block;
  shape.ahead_bytes = plan.from_memory ? ahead_bytes(view.dtype) : 0;
  shape.causal = problem.causal;
  shape.bf16 = plan.bf16_products ? bf16_products() : nullptr;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(view.head_dim)));
  return shape;
}

/// Blocks that stream `split` of `splits` takes of `blocks`.
struct Share {
  std::int64_t first, step, count;
};
Share share_of(Deal deal, std::int64_t split, std::int64_t splits, std::int64_t blocks) {
  if (deal == Deal::round_robin) {
    return {split, splits, split < blocks ? ceil_div(blocks - split, splits) : 0};
  }
  const std::int64_t first = split * blocks / splits;
  return {first, 1, (split + 1) * blocks / splits - first};
}

/// Keys a stream should have at least: below, starting it costs more than it saves.
constexpr std::int64_t kLeastKeys = 512;

/// One stream a head where there are enough heads for the threads; else the fewest that leave no thread idle for more
/// than a tenth of the time.
std::int64_t choose_splits(std::int64_t tasks, std::int64_t blocks, std::int64_t block) {
  const std::int64_t most = std::max<std::int64_t>(1, blocks * block / kLeastKeys);
  std::int64_t best = 1;
  double best_share = 0;
  for (std::int64_t splits = 1; splits <= std::min<std::int64_t>(most, 2 * num_threads()); ++splits) {
    const double share = even_share(tasks * splits);
    if (share > best_share + 1e-9) {
      best = splits;
      best_share = share;
    }
    if (share >= kEvenEnough) break;
  }
  return best;
}

}  // namespace

DecodePlan plan_decode_cpu(const DecodeProblem& problem, const KvView& view, const DecodeOptions& options) {
  // K and V of a block, read one after the other, stay in the second-level cache between score and sum of a few rows.
  constexpr std::int64_t kBlock = 256;
  constexpr std::int64_t kMemoryBlock = 2048;  // one or two rows go over K and V once, and memory likes long runs
  constexpr std::int64_t kGroupBlock = 1024;   // four rows' scores fill half of the first level
  constexpr std::int64_t kPagedBlock = 512;
  constexpr std::int64_t kBlocksASplit = 8;  // whose unevenness does not show
  DecodePlan plan;
  plan.merge = options.merge;
  plan.deal = options.deal;
  plan.from_memory = beyond_cache(view);
  plan.bf16_products = multiplies_bf16(problem, view);
  const std::int64_t rows = rows_of(problem, view);
  const std::int64_t grain = options.block != 0 ? options.block : kBlock;
  const std::int64_t grains = ceil_div(view.longest(), grain);
  const bool together = heads_together(problem, view);
  if (options.merge == Merge::sequential) {
    plan.splits = 1;
  } else if (options.splits != 0) {
    plan.splits = std::min(options.splits, grains);
  } else {
    const std::int64_t heads = together ? 1 : view.num_kv_heads;
    plan.splits = choose_splits(view.batch * heads * ceil_div(rows, kMostRows), grains, grain);
  }
  plan.block = grain;
  if (options.block == 0 && plan.from_memory && (together || rows <= 4)) {
    const std::int64_t most = together ? kPagedBlock : rows <= 2 ? kMemoryBlock : kGroupBlock;
    while (plan.block < most && (plan.splits == 1 || view.longest() >= 2 * plan.block * kBlocksASplit * plan.splits)) {
      plan.block *= 2;
    }
  }
  plan.parts = options.merge == Merge::two_pass ? ceil_div(view.longest(), plan.block) : plan.splits;
  const Shape shape = shape_of(problem, view, plan);
  plan.workspace_bytes = rounded(Layout(problem, view, plan, shape).floats() * sizeof(float));
  plan.kernel = std::string("flash_decode_cpu_") + (plan.bf16_products ? "avx512_bf16" : kernels().isa);
  return plan;
}

void flash_decode_cpu(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                      const ConstOperand& q, const Operand& o, float* lse) {
  const Shape shape = shape_of(problem, view, plan);
  const Layout layout(problem, view, plan, shape);
  const Buffer buffer(context, layout.floats() * sizeof(float));
  float* const part_o = static_cast<float*>(buffer.data());
  float* const part_m = part_o + layout.part_o;
  float* const part_l = part_m + layout.part_ml;
  float* const merged = part_l + layout.part_ml;
  float* const scratch = merged + layout.merged;

  const auto query_bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const auto cache_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t group = shape.group;
  const std::int64_t head_parts = plan.parts * layout.rows;
  const auto blocks_of = [&](std::int64_t batch) {
    return ceil_div(view.host_lengths[static_cast<std::size_t>(batch)], plan.block);
  };

  // A task: the heads of a stream, block of rows, stream.
  const std::int64_t streams = layout.row_blocks * plan.splits;
  const double keys = static_cast<double>(view.total_tokens()) / static_cast<double>(view.batch * plan.splits);
  const double stream_ns =
      keys * static_cast<double>(layout.together * view.head_dim * (cache_bytes + layout.block_rows)) / 16;
  parallel_for_work(layout.heads / layout.together * streams, stream_ns, [&](std::int64_t index, int worker) {
    const std::int64_t head = index / streams * layout.together;
    const std::int64_t batch = head / view.num_kv_heads;
    const std::int64_t kv_head = head % view.num_kv_heads;
    const std::int64_t row_block = index % streams / plan.splits;
    const Share share = share_of(plan.deal, index % plan.splits, plan.splits, blocks_of(batch));
    const bool part_a_block = plan.merge == Merge::two_pass;
    if (part_a_block && share.count == 0) return;

    Stream stream;
    stream.shape = &shape;
    stream.heads = layout.together;
    stream.q =
        static_cast<const char*>(q.data) + (batch * q.batch_stride + kv_head * group * q.head_stride) * query_bytes;
    stream.q_token_stride = q.row_stride;
    stream.q_head_stride = q.head_stride;
    stream.k = static_cast<const char*>(view.k) + kv_head * view.head_stride * cache_bytes;
    stream.v = static_cast<const char*>(view.v) + kv_head * view.head_stride * cache_bytes;
    stream.pages = view.pages + batch * view.pages_stride;
    stream.page_size = view.page_size;
    stream.page_stride = view.page_stride;
    stream.head_stride = view.head_stride;
    stream.row_stride = view.row_stride;
    stream.length = view.host_lengths[static_cast<std::size_t>(batch)];
    stream.first_row = row_block * layout.block_rows;
    stream.rows = std::min(layout.block_rows, layout.rows - stream.first_row);
    stream.first_block = share.first;
    stream.block_step = share.step;
    stream.blocks = share.count;
    stream.part_a_block = part_a_block;
    const std::int64_t part = part_a_block ? share.first : index % plan.splits;
    const std::int64_t at = head * head_parts + part * layout.rows + stream.first_row;
    stream.o = part_o + at * layout.padded;
    stream.m = part_m + at;
    stream.l = part_l + at;
    stream.part_stride = layout.rows * layout.padded;
    stream.row_stride_ml = layout.rows;
    stream.part_head_stride = head_parts * layout.padded;
    stream.head_stride_ml = head_parts;
    stream.scratch = scratch + static_cast<std::size_t>(worker) * layout.scratch;
    kernels().run(stream);
  });

  const RowOps& ops = row_ops(problem.dtype);
  const double merge_ns = static_cast<double>(head_parts * layout.padded) / 2;
  parallel_for_work(layout.heads, merge_ns, [&](std::int64_t head, int worker) {
    const std::int64_t batch = head / view.num_kv_heads;
    const std::int64_t kv_head = head % view.num_kv_heads;
    Partials partials;
    partials.o = part_o + head * head_parts * layout.padded;
    partials.m = part_m + head * head_parts;
    partials.l = part_l + head * head_parts;
    partials.parts = plan.merge == Merge::two_pass ? blocks_of(batch) : plan.splits;
    partials.rows = layout.rows;
    partials.head_dim = view.head_dim;
    partials.part_stride = layout.rows * layout.padded;
    partials.column_stride = layout.padded;
    partials.row_stride = layout.rows;
    partials.scale = shape.scale;
    float* const rows = merged + worker * layout.rows * layout.padded;
    std::vector<float> row_lse(static_cast<std::size_t>(layout.rows));
    merge_cpu(plan.merge, partials, rows, layout.padded, row_lse.data());
    for (std::int64_t r = 0; r < layout.rows; ++r) {
      const std::int64_t token = r / group;
      const std::int64_t query_head = kv_head * group + r % group;
      const std::int64_t to = batch * o.batch_stride + query_head * o.head_stride + token * o.row_stride;
      ops.from_float(rows + r * layout.padded, static_cast<char*>(o.data) + to * query_bytes, view.head_dim);
      lse[(batch * problem.num_heads + query_head) * problem.tokens + token] = row_lse[static_cast<std::size_t>(r)];
    }
  });
}

}  // namespace warpmeter::attention::detail
