#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/attention/decode.hpp"
#include "kernels/attention/implementation.hpp"
#include "kernels/attention/kv_cache.hpp"

namespace warpmeter::attention {

/// Chunked prefill: the queries of one chunk of a prompt against all keys so far, those of the chunk, which are in the
/// cache already, included. The mask is aligned to the end: query t of a chunk of n that ends at length L sees keys
/// [0, L - n + t + 1). The chunks of a prompt, one after the other, give what the whole gives at once, as row t of
/// attention depends on query t and the keys that it sees alone.
///
/// The arithmetic is an Implementation's (flash unless told otherwise). A cache that is contiguous and of the queries'
/// type is read in place; pages, and caches of another type, are first gathered, a sequence at a time: 1 / chunk of the
/// attention's own work.
///
/// Where the heads and queries are too few for a GPU, keys are split: [0, s p) as p parts of s keys without a mask, in
/// one call with the parts in the batch's place, and the rest with it; merged by LSE (merge.hpp). Parts are rounded to
/// the queries' type before they are merged, and LSE is one fp32 number: for 16-bit types that is below their rounding,
/// fp32 is not split unless asked to.
struct PrefillOptions {
  const Implementation* implementation = nullptr;  ///< null: flash
  std::int64_t key_splits = 0;                     ///< parts of keys, the masked one included; 0: chosen
};

struct PrefillPlan {
  const Implementation* implementation = nullptr;
  std::int64_t key_splits = 1;
  bool gather = false;
  std::size_t workspace_bytes = 0;  ///< the most that is taken from the allocator while it runs
  std::string kernel;               ///< what runs: "flash_cpu_avx512"
};

/// `problem` as for decoding, with any number of tokens; always causal. Throws KvCacheError with the reason.
[[nodiscard]] PrefillPlan plan_prefill(Device device, const DecodeProblem& problem, const KvView& view,
                                       const PrefillOptions& options = {});

/// Q, O: (batch, num_heads, tokens, head_dim); `lse` dense fp32 (batch, num_heads, tokens). Enqueues. Throws
/// OutOfMemory.
void prefill_attention(const Context& context, const DecodeProblem& problem, const KvView& view,
                       const PrefillPlan& plan, const ConstOperand& q, const Operand& o, float* lse);

}  // namespace warpmeter::attention
