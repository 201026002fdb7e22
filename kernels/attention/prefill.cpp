#include "kernels/attention/prefill.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernels/attention/detail/prefill_steps.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

ConstOperand shifted(const ConstOperand& operand, std::int64_t elements, DType dtype) {
  ConstOperand result = operand;
  result.data = static_cast<const char*>(operand.data) + elements * static_cast<std::int64_t>(size_of(dtype));
  return result;
}
Operand shifted(const Operand& operand, std::int64_t elements, DType dtype) {
  Operand result = operand;
  result.data = static_cast<char*>(operand.data) + elements * static_cast<std::int64_t>(size_of(dtype));
  return result;
}

AttentionProblem problem_of(const DecodeProblem& problem, const KvView& view, std::int64_t batch, std::int64_t keys,
                            bool causal) {
  AttentionProblem p;
  p.batch = batch;
  p.num_heads = problem.num_heads;
  p.num_kv_heads = view.num_kv_heads;
  p.seq_len = problem.tokens;
  p.kv_len = keys;
  p.head_dim = view.head_dim;
  p.dtype = problem.dtype;
  p.causal = causal;
  return p;
}

/// The unmasked parts of a sequence, whole tiles of the keys ahead of the chunk, and what is left with the mask: the
/// chunk's own keys and less than a tile a part. The parts are one call and fill the device, the rest is another that
/// does not: it should be short.
struct Split {
  std::int64_t parts = 0, part = 0, rest;
  Split(std::int64_t length, std::int64_t tokens, std::int64_t splits) {
    constexpr std::int64_t kTile = 128;
    if (splits > 1) part = (length - tokens) / (splits - 1) / kTile * kTile;
    if (part > 0) parts = splits - 1;
    rest = length - parts * part;
  }
};

bool one_call(const KvView& view) {
  return std::all_of(view.host_lengths.begin(), view.host_lengths.end(),
                     [&](std::int64_t length) { return length == view.host_lengths.front(); });
}

/// Unmasked parts so that heads x query tiles x parts fill the device once, and the rest; 1 where the tiles fill half
/// of it already, where a part would be short, and for fp32.
std::int64_t choose_key_splits(Device device, const DecodeProblem& problem, const KvView& view) {
  if (device.is_cpu() || !is_16bit(problem.dtype)) return 1;
  constexpr std::int64_t kTile = 128, kLeastKeys = 2048;
  const std::int64_t processors = properties(device).multiprocessors;
  const std::int64_t tiles =
      (one_call(view) ? view.batch : 1) * problem.num_heads * ((problem.tokens + kTile - 1) / kTile);
  if (2 * tiles > processors) return 1;
  const std::int64_t parts = std::min(processors / tiles, (view.longest() - problem.tokens) / kLeastKeys);
  return std::max<std::int64_t>(parts, 0) + 1;
}

/// Whether the implementation has the same queries for every part from one array.
bool shares_queries(Device device, const Implementation& implementation) {
  return device.is_cpu() || implementation.name() == "flash";
}

/// Elements of a sequence's gathered keys, of its parts' O, and their LSE.
struct Sizes {
  std::size_t gathered, queries, parts_o, parts_lse;
  Sizes(const DecodeProblem& problem, const KvView& view, std::int64_t length, const Split& split) {
    gathered = static_cast<std::size_t>(view.num_kv_heads * length * view.head_dim) * size_of(problem.dtype);
    const auto rows = static_cast<std::size_t>((split.parts + 1) * problem.num_heads * problem.tokens);
    parts_o = rows * static_cast<std::size_t>(view.head_dim) * size_of(problem.dtype);
    queries = parts_o / static_cast<std::size_t>(split.parts + 1) * static_cast<std::size_t>(split.parts);
    parts_lse = rows * sizeof(float);
  }
};

std::size_t forward_peak(const Implementation& implementation, const AttentionProblem& problem) {
  return implementation.memory_plan(problem, false).forward_peak;
}

}  // namespace

PrefillPlan plan_prefill(Device device, const DecodeProblem& problem, const KvView& view,
                         const PrefillOptions& options) {
  if (const std::string reason = invalid_reason(problem, view); !reason.empty()) {
    throw KvCacheError("prefill: " + reason);
  }
  if (options.key_splits < 0 || options.key_splits > 1024) {
    throw std::invalid_argument("key_splits must be from 1 to 1024, or 0, not " + std::to_string(options.key_splits));
  }
  PrefillPlan plan;
  plan.implementation =
      options.implementation != nullptr ? options.implementation : find_implementation(device.kind, "flash");
  if (plan.implementation == nullptr) throw KvCacheError("prefill: no implementation of attention on this device");
  plan.gather = view.paged || view.dtype != problem.dtype;
  plan.key_splits = options.key_splits != 0 ? options.key_splits : choose_key_splits(device, problem, view);
  const bool together = !plan.gather && plan.key_splits == 1 && one_call(view);
  const AttentionProblem whole = problem_of(problem, view, together ? view.batch : 1, view.longest(), true);
  if (const auto reason = plan.implementation->unsupported(whole, Pass::forward)) {
    throw KvCacheError("prefill: " + std::string(plan.implementation->name()) + ": " + *reason);
  }
  plan.kernel = plan.implementation->kernel(whole, Pass::forward);
  for (const std::int64_t length : view.host_lengths) {
    const Split split(length, problem.tokens, plan.key_splits);
    const Sizes sizes(problem, view, length, split);
    std::size_t bytes = plan.gather ? 2 * rounded(sizes.gathered) : 0;
    std::size_t peak =
        forward_peak(*plan.implementation, problem_of(problem, view, together ? view.batch : 1, split.rest, true));
    if (split.parts > 0) {
      bytes += rounded(sizes.parts_o) + rounded(sizes.parts_lse) +
               (shares_queries(device, *plan.implementation) ? 0 : rounded(sizes.queries));
      peak =
          std::max(peak, forward_peak(*plan.implementation, problem_of(problem, view, split.parts, split.part, false)));
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, bytes + peak);
  }
  return plan;
}

namespace {

/// One sequence: gathered if it must be, split if the plan says so.
void prefill_sequence(const Context& context, const DecodeProblem& problem, const KvView& view, const PrefillPlan& plan,
                      std::int64_t sequence, const ConstOperand& q, const Operand& o, float* lse) {
  const std::int64_t length = view.host_lengths[static_cast<std::size_t>(sequence)];
  const Split split(length, problem.tokens, plan.key_splits);
  const Sizes sizes(problem, view, length, split);
  ConstOperand k{view.k, 0, view.head_stride, view.row_stride};
  ConstOperand v{view.v, 0, view.head_stride, view.row_stride};
  Buffer gathered_k, gathered_v;
  if (plan.gather) {
    gathered_k = Buffer(context, sizes.gathered);
    gathered_v = Buffer(context, sizes.gathered);
    const detail::KvGather gather{view, sequence, length, problem.dtype, gathered_k.data(), gathered_v.data()};
    if (context.device().is_cpu()) {
      detail::kv_gather_cpu(gather);
    } else {
#if WARPMETER_CUDA_DECODE
      detail::kv_gather_cuda(context, gather);
#endif
    }
    k = {gathered_k.data(), 0, length * view.head_dim, view.head_dim};
    v = {gathered_v.data(), 0, length * view.head_dim, view.head_dim};
  } else {  // contiguous: page b is sequence b
    k = shifted(k, sequence * view.page_stride, view.dtype);
    v = shifted(v, sequence * view.page_stride, view.dtype);
  }
  ForwardArguments arguments{q, k, v, o, lse};
  if (split.parts == 0) {
    (void)plan.implementation->forward(context, problem_of(problem, view, 1, length, true), arguments, false);
    return;
  }

  const Buffer parts_o(context, sizes.parts_o);
  const Buffer parts_lse(context, sizes.parts_lse);
  const std::int64_t rows = problem.num_heads * problem.tokens;
  const Operand part{parts_o.data(), rows * view.head_dim, problem.tokens * view.head_dim, view.head_dim};
  float* const part_lse = static_cast<float*>(parts_lse.data());
  Buffer copies;
  if (!shares_queries(context.device(), *plan.implementation)) {
    copies = Buffer(context, sizes.queries);
#if WARPMETER_CUDA_DECODE
    detail::copy_queries_cuda(
        context, {q, problem.dtype, problem.num_heads, problem.tokens, view.head_dim, split.parts, copies.data()});
#endif
    arguments.q = {copies.data(), part.batch_stride, part.head_stride, part.row_stride};
  } else {
    arguments.q.batch_stride = 0;  // the same queries for every part
  }
  arguments.k.batch_stride = split.part * k.row_stride;
  arguments.v.batch_stride = split.part * v.row_stride;
  arguments.o = part;
  arguments.lse = part_lse;
  (void)plan.implementation->forward(context, problem_of(problem, view, split.parts, split.part, false), arguments,
                                     false);
  arguments.q = q;
  arguments.k = shifted(k, split.parts * split.part * k.row_stride, problem.dtype);
  arguments.v = shifted(v, split.parts * split.part * v.row_stride, problem.dtype);
  arguments.o = shifted(part, split.parts * part.batch_stride, problem.dtype);
  arguments.lse = part_lse + split.parts * rows;
  (void)plan.implementation->forward(context, problem_of(problem, view, 1, split.rest, true), arguments, false);

  detail::NormalizedParts merge;
  merge.o = parts_o.data();
  merge.lse = part_lse;
  merge.dtype = problem.dtype;
  merge.parts = split.parts + 1;
  merge.heads = problem.num_heads;
  merge.rows = problem.tokens;
  merge.head_dim = view.head_dim;
  merge.out = o;
  merge.out_lse = lse;
  if (context.device().is_cpu()) {
    detail::merge_normalized_cpu(merge);
  } else {
#if WARPMETER_CUDA_DECODE
    detail::merge_normalized_cuda(context, merge);
#endif
  }
}

}  // namespace

void prefill_attention(const Context& context, const DecodeProblem& problem, const KvView& view,
                       const PrefillPlan& plan, const ConstOperand& q, const Operand& o, float* lse) {
  const Range range("ATTN_PREFILL_CHUNK");
  WM_CHECK(invalid_reason(problem, view).empty(), invalid_reason(problem, view));
  if (!plan.gather && plan.key_splits == 1 && one_call(view)) {
    const ConstOperand k{view.k, view.page_stride, view.head_stride, view.row_stride};
    const ConstOperand v{view.v, view.page_stride, view.head_stride, view.row_stride};
    (void)plan.implementation->forward(context, problem_of(problem, view, view.batch, view.longest(), true),
                                       {q, k, v, o, lse}, false);
    return;
  }
  for (std::int64_t b = 0; b < view.batch; ++b) {
    prefill_sequence(context, problem, view, plan, b, shifted(q, b * q.batch_stride, problem.dtype),
                     shifted(o, b * o.batch_stride, problem.dtype), lse + b * problem.num_heads * problem.tokens);
  }
}

}  // namespace warpmeter::attention
