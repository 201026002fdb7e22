#pragma once

#include <optional>
#include <string>

#include "kernels/attention/implementation.hpp"

/// Flash's forward on Hopper (cuda/flash_sm90/): what the flash implementations ask before they take it.
namespace warpmeter::attention::flash_hopper {

/// nullopt when the current device and this build can run the forward of `problem`, else the reason. Kernels exist for
/// bf16 and fp16 and for head dims 64, 80, 96, 128 and 256.
[[nodiscard]] std::optional<std::string> unsupported(const AttentionProblem& problem);

/// "flash_sm90_d128_causal_bf16". Valid when supported.
[[nodiscard]] std::string kernel(const AttentionProblem& problem);

/// Enqueues O and LSE, if the copy engine can take every operand (rows on 16 bytes, strides above 0); else false, and
/// nothing is done. Valid when supported. Throws DeviceError.
[[nodiscard]] bool forward(const Context& context, const AttentionProblem& problem, const ForwardArguments& arguments);

}  // namespace warpmeter::attention::flash_hopper
