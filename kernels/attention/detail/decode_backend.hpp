#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/decode.hpp"

/// The devices behind plan_decode and flash_decode, which have checked the problem and the options' ranges.
namespace warpmeter::attention::detail {

[[nodiscard]] DecodePlan plan_decode_cpu(const DecodeProblem& problem, const KvView& view,
                                         const DecodeOptions& options);
void flash_decode_cpu(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                      const ConstOperand& q, const Operand& o, float* lse);

/// Partial results of a query that CUDA's merge can join: it keeps three floats of each in a block's shared memory, of
/// which every device has 99 KiB.
inline constexpr std::int64_t kMostMergedParts = 8192;
static_assert(kMostMergedParts * 3 * std::int64_t{sizeof(float)} <= 99 * 1024);

/// Keys of a block of the two-pass form, which keeps a partial result of every one: `block`, or more, a multiple of 16,
/// where `longest` keys would make more of them than can be joined.
[[nodiscard]] constexpr std::int64_t two_pass_block(std::int64_t longest, std::int64_t block) {
  constexpr std::int64_t kStep = 16 * kMostMergedParts;
  return std::max(block, (longest + kStep - 1) / kStep * 16);
}

// Defined where there is CUDA.
[[nodiscard]] DecodePlan plan_decode_cuda(Device device, const DecodeProblem& problem, const KvView& view,
                                          const DecodeOptions& options);
void flash_decode_cuda(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                       const ConstOperand& q, const Operand& o, float* lse);

}  // namespace warpmeter::attention::detail
