#include "kernels/attention/decode.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/attention/detail/decode_backend.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

constexpr std::int64_t kMostSplits = 1024;
constexpr std::int64_t kLeastBlock = 16;
constexpr std::int64_t kMostBlock = 4096;

std::string in_a_range(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  return std::string(what) + " must be from " + std::to_string(low) + " to " + std::to_string(high) + ", or 0, not " +
         std::to_string(value);
}

}  // namespace

std::string invalid_reason(const DecodeProblem& problem, const KvView& view) {
  if (problem.dtype != DType::fp32 && !is_16bit(problem.dtype)) {
    return "queries are fp32, bf16 or fp16, not " + std::string(name(problem.dtype));
  }
  if (problem.tokens < 1) return "query tokens must be at least 1, not " + std::to_string(problem.tokens);
  if (problem.num_heads < 1 || problem.num_heads % view.num_kv_heads != 0) {
    return std::to_string(problem.num_heads) + " query heads cannot share " + std::to_string(view.num_kv_heads) +
           " key/value heads evenly";
  }
  for (std::size_t b = 0; b < view.host_lengths.size(); ++b) {
    const std::int64_t length = view.host_lengths[b];
    if (length == 0) return "sequence " + std::to_string(b) + " is empty: prefill it first";
    if (length < problem.tokens) {
      return "sequence " + std::to_string(b) + " holds " + std::to_string(length) + " tokens, fewer than the " +
             std::to_string(problem.tokens) + " query tokens: append their keys and values first";
    }
  }
  return "";
}

std::optional<std::string> unsupported(DeviceKind device, const DecodeOptions& options) {
  if (device == DeviceKind::cpu || options.block % kCudaWarpKeys == 0) return std::nullopt;
  return "block must be a multiple of " + std::to_string(kCudaWarpKeys) + " on CUDA, not " +
         std::to_string(options.block);
}

DecodePlan plan_decode(Device device, const DecodeProblem& problem, const KvView& view, const DecodeOptions& options) {
  if (const std::string reason = invalid_reason(problem, view); !reason.empty()) {
    throw KvCacheError("decode: " + reason);
  }
  if (options.splits < 0 || options.splits > kMostSplits) {
    throw std::invalid_argument(in_a_range("splits", options.splits, 1, kMostSplits));
  }
  if (options.block != 0 && (options.block < kLeastBlock || options.block > kMostBlock)) {
    throw std::invalid_argument(in_a_range("block", options.block, kLeastBlock, kMostBlock));
  }
  if (options.merge == Merge::sequential && options.splits > 1) {
    throw std::invalid_argument("the sequential form is one stream, not " + std::to_string(options.splits) + " splits");
  }
  if (const auto reason = unsupported(device.kind, options)) throw std::invalid_argument(*reason);
  if (device.is_cpu()) return detail::plan_decode_cpu(problem, view, options);
#if WARPMETER_CUDA_DECODE
  return detail::plan_decode_cuda(device, problem, view, options);
#else
  throw std::invalid_argument("flash decoding on CUDA is not in this build");
#endif
}

void flash_decode(const Context& context, const DecodeProblem& problem, const KvView& view, const DecodePlan& plan,
                  const ConstOperand& q, const Operand& o, float* lse) {
  const Range range("ATTN_FLASH_DECODE");
  WM_CHECK(invalid_reason(problem, view).empty(), invalid_reason(problem, view));
  if (context.device().is_cpu()) return detail::flash_decode_cpu(context, problem, view, plan, q, o, lse);
#if WARPMETER_CUDA_DECODE
  detail::flash_decode_cuda(context, problem, view, plan, q, o, lse);
#else
  WM_CHECK(false, "flash decoding on CUDA is not in this build");
#endif
}

bool decodes_on_cuda() noexcept {
#if WARPMETER_CUDA_DECODE
  return true;
#else
  return false;
#endif
}

double decode_flops(const DecodeProblem& problem, const KvView& view) {
  double pairs = 0;
  for (const std::int64_t length : view.host_lengths) {
    const auto n = static_cast<double>(length), t = static_cast<double>(problem.tokens);
    pairs += problem.causal ? t * n - t * (t - 1) / 2 : t * n;
  }
  return 4 * static_cast<double>(problem.num_heads) * pairs * static_cast<double>(view.head_dim);
}

double decode_bytes(const DecodeProblem& problem, const KvView& view) {
  const auto rows = static_cast<double>(view.batch * problem.num_heads * problem.tokens);
  return view.bytes() + rows * (2.0 * static_cast<double>(view.head_dim) * static_cast<double>(size_of(problem.dtype)) +
                                sizeof(float));
}

}  // namespace warpmeter::attention
