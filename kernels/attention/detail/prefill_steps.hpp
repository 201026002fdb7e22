#pragma once

#include <cstdint>

#include "kernels/attention/kv_cache.hpp"
#include "kernels/runtime/context.hpp"

/// The steps of chunked prefill around the attention itself, on the context's device.
namespace warpmeter::attention::detail {

/// Keys and values of one sequence, dense (num_kv_heads, length, head_dim), in `dtype`.
struct KvGather {
  KvView view;
  std::int64_t sequence = 0;
  std::int64_t length = 0;
  DType dtype = DType::fp32;
  void* k = nullptr;
  void* v = nullptr;
};
void kv_gather_cpu(const KvGather& gather);
void kv_gather_cuda(const Context& context, const KvGather& gather);  ///< defined where there is CUDA

/// Keys and values [first, first + rows) of every sequence, dense (batch, num_kv_heads, rows, head_dim). Of 16 bits,
/// rows of whole 16-byte pieces on 16 bytes; `view` is paged.
struct KvRows {
  KvView view;
  std::int64_t first = 0, rows = 0;
  void* k = nullptr;
  void* v = nullptr;
};
void kv_rows_cuda(const Context& context, const KvRows& rows);  ///< defined where there is CUDA

/// Queries (heads, rows, head_dim) of one sequence in `dtype`, dense and `copies` times one after another: not every
/// implementation takes a stride of zero.
struct QueryCopies {
  ConstOperand q;  ///< batch entry 0 of it
  DType dtype = DType::fp32;
  std::int64_t heads = 0, rows = 0, head_dim = 0, copies = 0;
  void* out = nullptr;
};
void copy_queries_cuda(const Context& context, const QueryCopies& copies);  ///< defined where there is CUDA

/// Normalized parts of (heads, rows) queries, merged by LSE. Part p of row r of head h has O at
/// o + ((p * heads + h) * rows + r) * head_dim in `dtype` and LSE at lse[(p * heads + h) * rows + r].
struct NormalizedParts {
  const void* o = nullptr;
  const float* lse = nullptr;
  DType dtype = DType::fp32;
  std::int64_t parts = 0, heads = 0, rows = 0, head_dim = 0;
  Operand out;  ///< batch entry 0 of it
  float* out_lse = nullptr;
};
void merge_normalized_cpu(const NormalizedParts& parts);
void merge_normalized_cuda(const Context& context, const NormalizedParts& parts);  ///< defined where there is CUDA

}  // namespace warpmeter::attention::detail
