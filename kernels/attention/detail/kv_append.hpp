#pragma once

#include <cstdint>

#include "kernels/attention/problem.hpp"
#include "kernels/runtime/context.hpp"

namespace warpmeter::attention::detail {

/// Rows to be appended to a cache, of every sequence at once; KvView says how pages are addressed.
struct KvAppend {
  DType from = DType::fp32;
  DType to = DType::fp32;
  ConstOperand k, v;
  void* cache_k = nullptr;
  void* cache_v = nullptr;
  std::int64_t batch = 0, heads = 0, head_dim = 0;
  std::int64_t page_size = 0, page_stride = 0, head_stride = 0, row_stride = 0;
  const std::int32_t* pages = nullptr;  ///< on the device
  std::int64_t pages_stride = 0;
  const std::int32_t* lengths = nullptr;        ///< after appending, on the device
  const std::int64_t* tokens = nullptr;         ///< a sequence, on the host
  std::int64_t most_tokens = 0;                 ///< of a sequence
  const std::int32_t* device_tokens = nullptr;  ///< a sequence, on the device
};

void kv_append_cpu(const KvAppend& append);
/// Enqueues. Defined where there is CUDA.
void kv_append_cuda(const Context& context, const KvAppend& append);

}  // namespace warpmeter::attention::detail
