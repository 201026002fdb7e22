#pragma once

#include "kernels/attention/decode.hpp"

/// The devices behind plan_decode and flash_decode, which have checked the problem and the options' ranges.
namespace warpmeter::attention::detail {

[[nodiscard]] DecodePlan plan_decode_cpu(const DecodeProblem& problem, const KvView& view,
                                         const DecodeOptions& options);
void flash_decode_cpu(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                      const ConstOperand& q, const Operand& o, float* lse);

// Defined where there is CUDA.
[[nodiscard]] DecodePlan plan_decode_cuda(Device device, const DecodeProblem& problem, const KvView& view,
                                          const DecodeOptions& options);
void flash_decode_cuda(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                       const ConstOperand& q, const Operand& o, float* lse);

}  // namespace warpmeter::attention::detail
