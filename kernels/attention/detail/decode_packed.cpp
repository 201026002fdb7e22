#include "kernels/attention/detail/decode_packed.hpp"

#include <algorithm>
#include <optional>

#include "kernels/attention/detail/flash_hopper.hpp"
#include "kernels/attention/detail/prefill_steps.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention::detail {

namespace {

constexpr std::int64_t kParts = 2;

std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

/// Keys from the first one that some token does not see on, and before them less than a tile, so that the call without
/// a mask has whole ones.
std::int64_t masked_keys(const DecodeProblem& problem, std::int64_t length) {
  constexpr std::int64_t kTile = 128;
  return problem.tokens + (length - problem.tokens) % kTile;
}

AttentionProblem unmasked_problem(const DecodeProblem& problem, const KvView& view) {
  AttentionProblem p;
  p.batch = view.batch;
  p.num_heads = p.num_kv_heads = view.num_kv_heads;
  p.seq_len = problem.num_heads / view.num_kv_heads * problem.tokens;
  p.kv_len = view.longest() - masked_keys(problem, view.longest());
  p.head_dim = view.head_dim;
  p.dtype = problem.dtype;
  p.causal = false;
  return p;
}

AttentionProblem masked_problem(const DecodeProblem& problem, const KvView& view) {
  AttentionProblem p;
  p.batch = view.batch;
  p.num_heads = problem.num_heads;
  p.num_kv_heads = view.num_kv_heads;
  p.seq_len = problem.tokens;
  p.kv_len = masked_keys(problem, view.longest());
  p.head_dim = view.head_dim;
  p.dtype = problem.dtype;
  p.causal = true;
  return p;
}

/// Of one part.
std::int64_t rows(const DecodeProblem& problem, const KvView& view) {
  return view.batch * problem.num_heads * problem.tokens;
}
std::size_t parts_o_bytes(const DecodeProblem& problem, const KvView& view) {
  return static_cast<std::size_t>(kParts * rows(problem, view) * view.head_dim) * size_of(problem.dtype);
}
std::size_t parts_lse_bytes(const DecodeProblem& problem, const KvView& view) {
  return static_cast<std::size_t>(kParts * rows(problem, view)) * sizeof(float);
}

/// Of the masked keys, or of their values, where they are gathered from their pages; else 0.
std::size_t gathered_bytes(const DecodeProblem& problem, const KvView& view) {
  if (!view.paged) return 0;
  return static_cast<std::size_t>(view.batch * view.num_kv_heads * masked_keys(problem, view.longest()) *
                                  view.head_dim) *
         size_of(view.dtype);
}

const void* shifted(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

bool packs(const DecodeProblem& problem, const KvView& view, std::int64_t processors) {
  constexpr std::int64_t kBlockRows = 32, kMostRows = 64, kLeastKeys = 2048;
  const std::int64_t row_count = problem.num_heads / view.num_kv_heads * problem.tokens;
  const bool one_length = std::all_of(view.host_lengths.begin(), view.host_lengths.end(),
                                      [&](std::int64_t length) { return length == view.host_lengths.front(); });
  if (!is_16bit(problem.dtype) || view.dtype != problem.dtype || !one_length || !problem.causal ||
      (view.paged && view.page_count == 0) || row_count <= kBlockRows || row_count > kMostRows ||
      view.longest() < kLeastKeys || 10 * view.batch * view.num_kv_heads < 9 * processors ||
      view.batch * problem.num_heads >= 65536) {
    return false;
  }
  const AttentionProblem unmasked = unmasked_problem(problem, view);
  return !(view.paged ? flash_hopper::paged_unsupported(unmasked) : flash_hopper::unsupported(unmasked)).has_value() &&
         !flash_hopper::unsupported(masked_problem(problem, view)).has_value();
}

std::string packed_kernel(const DecodeProblem& problem, const KvView& view) {
  const AttentionProblem unmasked = unmasked_problem(problem, view);
  return view.paged ? flash_hopper::paged_kernel(unmasked) : flash_hopper::kernel(unmasked);
}

std::size_t packed_bytes(const DecodeProblem& problem, const KvView& view) {
  return rounded(parts_o_bytes(problem, view)) + rounded(parts_lse_bytes(problem, view)) +
         2 * rounded(gathered_bytes(problem, view));
}

bool flash_decode_packed(const Context& context, const DecodeProblem& problem, const KvView& view,
                         const ConstOperand& q, const Operand& o, float* lse) {
  const std::int64_t group = problem.num_heads / view.num_kv_heads;
  if (q.head_stride != problem.tokens * q.row_stride) return false;
  if (view.batch > 1 && o.batch_stride != problem.num_heads * o.head_stride) return false;
  const DeviceGuard guard(context.device());
  const Buffer parts_o(context, parts_o_bytes(problem, view));
  const Buffer parts_lse(context, parts_lse_bytes(problem, view));
  auto* const lse_of_parts = static_cast<float*>(parts_lse.data());
  const std::int64_t head_elements = problem.tokens * view.head_dim;

  ForwardArguments unmasked;
  unmasked.q = {q.data, q.batch_stride, group * q.head_stride, q.row_stride};
  unmasked.k = {view.k, view.page_stride, view.head_stride, view.row_stride};
  unmasked.v = {view.v, view.page_stride, view.head_stride, view.row_stride};
  unmasked.o = {parts_o.data(), problem.num_heads * head_elements, group * head_elements, view.head_dim};
  unmasked.lse = lse_of_parts;
  const AttentionProblem whole = unmasked_problem(problem, view);
  const flash_hopper::KeyPages pages{view.pages, view.pages_stride, view.page_size, view.page_count};
  if (view.paged ? !flash_hopper::paged_forward(context, whole, unmasked, pages)
                 : !flash_hopper::forward(context, whole, unmasked)) {
    return false;
  }

  const std::int64_t masked_rows = masked_keys(problem, view.longest()), begin = view.longest() - masked_rows;
  ForwardArguments masked = unmasked;
  masked.q = q;
  std::optional<Buffer> gathered_k, gathered_v;
  if (view.paged) {
    // Few, and behind them in their page lies anything.
    gathered_k.emplace(context, gathered_bytes(problem, view));
    gathered_v.emplace(context, gathered_bytes(problem, view));
    kv_rows_cuda(context, {view, begin, masked_rows, gathered_k->data(), gathered_v->data()});
    const std::int64_t head_stride = masked_rows * view.head_dim;
    masked.k = {gathered_k->data(), view.num_kv_heads * head_stride, head_stride, view.head_dim};
    masked.v = {gathered_v->data(), view.num_kv_heads * head_stride, head_stride, view.head_dim};
  } else {
    masked.k.data = shifted(view.k, begin * view.row_stride, view.dtype);
    masked.v.data = shifted(view.v, begin * view.row_stride, view.dtype);
  }
  masked.o = {static_cast<char*>(parts_o.data()) + parts_o_bytes(problem, view) / kParts,
              problem.num_heads * head_elements, head_elements, view.head_dim};
  masked.lse = lse_of_parts + rows(problem, view);
  WM_CHECK(flash_hopper::forward(context, masked_problem(problem, view), masked),
           "what the first call takes the second one takes");

  NormalizedParts merge;
  merge.o = parts_o.data();
  merge.lse = lse_of_parts;
  merge.dtype = problem.dtype;
  merge.parts = kParts;
  merge.heads = view.batch * problem.num_heads;
  merge.rows = problem.tokens;
  merge.head_dim = view.head_dim;
  merge.out = o;
  merge.out_lse = lse;
  merge_normalized_cuda(context, merge);
  return true;
}

}  // namespace warpmeter::attention::detail
