#pragma once

#include <cstdint>
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

/// Keys and values in pages, as KvView has them; the strides of k and v are a page's, their batch stride the page's
/// own.
struct KeyPages {
  const std::int32_t* table = nullptr;  ///< on the device
  std::int64_t table_stride = 0;        ///< of a batch entry
  std::int64_t page_size = 0;           ///< a power of two, 16 to 256
  std::int64_t count = 0;
};

/// The same over pages. Kernels exist for bf16 and fp16, head dims 64 and 128, without a causal mask, and for whole
/// blocks of 128 keys: nothing behind the last key is read, which need not be a number.
[[nodiscard]] std::optional<std::string> paged_unsupported(const AttentionProblem& problem);
[[nodiscard]] std::string paged_kernel(const AttentionProblem& problem);  ///< "flash_sm90_d128_paged_bf16"
[[nodiscard]] bool paged_forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, const KeyPages& pages);

}  // namespace warpmeter::attention::flash_hopper
