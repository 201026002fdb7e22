#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/attention/detail/decode_join.hpp"
#include "kernels/attention/kv_cache.hpp"
#include "kernels/attention/merge.hpp"
#include "kernels/attention/problem.hpp"
#include "kernels/runtime/context.hpp"

namespace warpmeter::attention {

/// Attention of the newest tokens of every sequence over its cache: one query token when a model generates, a few when
/// speculative tokens are checked.
///
/// Q, O: (batch, num_heads, tokens, head_dim) in `dtype`; the keys and values of these tokens are in the cache already,
/// the last `tokens` ones of each sequence. Query token t of a sequence of length n sees keys [0, n - tokens + t + 1)
/// where causal, else all n. batch, key/value heads and head_dim are the view's.
struct DecodeProblem {
  std::int64_t num_heads = 1;
  std::int64_t tokens = 1;
  DType dtype = DType::fp32;  ///< of Q and O; the cache has its own
  bool causal = true;
};

/// How blocks of keys are dealt to parallel streams.
enum class Deal : std::uint8_t {
  contiguous,   ///< stream s takes the s-th of even, contiguous parts
  round_robin,  ///< stream s takes blocks s, s + streams, s + 2 streams, ...
};
inline constexpr std::array<std::string_view, 2> kDealNames = {"contiguous", "round_robin"};
[[nodiscard]] constexpr std::string_view name(Deal deal) noexcept {
  return kDealNames[static_cast<std::size_t>(deal)];
}

/// Keys that a warp scores at once on CUDA.
inline constexpr std::int64_t kCudaWarpKeys = 16;

/// On CUDA a block is a multiple of kCudaWarpKeys, and the two-pass form has a stream of its own for every block (of
/// 1024 keys unless told otherwise), whatever `splits` says; blocks are larger where there would be more than 8192 of
/// them.
struct DecodeOptions {
  std::int64_t splits = 0;  ///< parallel streams a (sequence, key/value head); 0: chosen from the device and the work
  std::int64_t block = 0;   ///< keys scored at once, 16 to 4096; 0: chosen
  Merge merge = Merge::tree;
  Deal deal = Deal::contiguous;
};

/// What flash_decode will do.
struct DecodePlan {
  std::int64_t splits = 1;
  std::int64_t block = 0;
  std::int64_t parts = 1;  ///< partial results of a query: splits, or blocks for two_pass
  Merge merge = Merge::tree;
  Deal deal = Deal::contiguous;
  Join join = Join::none;
  DecodeBlock block_shape = DecodeBlock::usual;  ///< CUDA, 16 bits
  bool packed = false;                           ///< CUDA: by the forward of training, where the operands lie so
  bool pass_l2 = false;                          ///< CUDA: keys and values are the first to leave the L2 cache
  bool from_memory = false;         ///< CPU: the caches do not hold the keys and values; changes no bit of the result
  bool bf16_products = false;       ///< CPU: bf16 operands are multiplied without being widened (AVX512_BF16)
  std::size_t workspace_bytes = 0;  ///< taken from the allocator while it runs
  std::string kernel;               ///< "flash_decode_cpu_avx512", "flash_decode_cpu_avx512_bf16"
};

/// "" when the problem can be decoded from the view, else the reason in a few words: heads that do not divide, a
/// sequence that is empty ("sequence 2 is empty: prefill it first") or shorter than its query tokens.
[[nodiscard]] std::string invalid_reason(const DecodeProblem& problem, const KvView& view);

/// Why these options, each in its range, cannot be had on devices of this kind; nullopt when they can.
[[nodiscard]] std::optional<std::string> unsupported(DeviceKind device, const DecodeOptions& options);

/// Throws KvCacheError with invalid_reason(), std::invalid_argument for options that contradict each other (a
/// sequential merge of several splits), are out of range or unsupported().
[[nodiscard]] DecodePlan plan_decode(Device device, const DecodeProblem& problem, const KvView& view,
                                     const DecodeOptions& options = {});

/// FlashDecoding: each (sequence, key/value head) is dealt to `plan.splits` streams, each stream walks over its blocks
/// of keys with an online softmax, and the partial results are merged (merge.hpp). The query heads of a group and all
/// query tokens share one walk over their keys. `lse`: dense fp32 (batch, num_heads, tokens).
///
/// Enqueues on the context's stream. The bits of the result depend on the plan alone, not on the number of threads or
/// the order of streams. Throws OutOfMemory.
void flash_decode(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                  const ConstOperand& q, const Operand& o, float* lse);

/// Whether this build decodes on CUDA devices.
[[nodiscard]] bool decodes_on_cuda() noexcept;

/// The usual case in one call.
inline void flash_decode(const Context& context, const DecodeProblem& problem, const KvView& view,
                         const ConstOperand& q, const Operand& o, float* lse) {
  flash_decode(context, problem, view, plan_decode(context.device(), problem, view), q, o, lse);
}

/// 4 * heads * visible pairs * head_dim over all sequences.
[[nodiscard]] double decode_flops(const DecodeProblem& problem, const KvView& view);
/// Keys and values read once, q once, o and lse written once.
[[nodiscard]] double decode_bytes(const DecodeProblem& problem, const KvView& view);

}  // namespace warpmeter::attention
