#pragma once

#include <cstdint>

namespace warpmeter::attention::cuda_decode {

enum class Element : std::int32_t { fp32, bf16, fp16 };

/// Rows of queries that one block of the tensor core kernel takes at most, and the keys that a warp scores at once.
inline constexpr int kMostTileRows = 32;
inline constexpr int kWarpKeys = 16;

/// One call of flash decoding. Row r of a key/value head is query token r / group of its group's head r % group.
/// Partial p of row r of (sequence b, key/value head h) lies at index ((b * num_kv_heads + h) * parts + p) * rows + r:
/// m and l there, o `part_width` floats for each.
struct Params {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  float *part_o = nullptr, *part_m = nullptr, *part_l = nullptr;
  const std::int32_t *pages = nullptr, *lengths = nullptr;
  std::int64_t pages_stride = 0, page_stride = 0, head_stride = 0, row_stride = 0;
  std::int64_t q_batch_stride = 0, q_head_stride = 0, q_token_stride = 0;
  std::int64_t o_batch_stride = 0, o_head_stride = 0, o_token_stride = 0;
  int page_shift = -1;  ///< log2 of the page size; -1: contiguous, page b is sequence b
  int batch = 0, num_heads = 0, num_kv_heads = 0, tokens = 0, group = 0, rows = 0, head_dim = 0;
  int parts = 1;  ///< streams, each a partial result
  int block = 0;  ///< keys; a multiple of kWarpKeys
  int part_width = 0;
  bool round_robin = false;
  bool causal = true;
  float scale = 0;
  Element query_element = Element::fp32, cache_element = Element::fp32;
};

/// How many blocks of threads `launch` will have a row block's stream run by at once, for choosing the splits.
struct Residency {
  int row_blocks;          ///< of a key/value head
  int blocks_a_processor;  ///< that fit on one SM
};
[[nodiscard]] Residency residency(const Params& params);
[[nodiscard]] const char* kernel_name(const Params& params);

/// Enqueues the streams; with parts == 1 they write o and lse themselves.
void launch_streams(const Params& params, void* stream);
/// Enqueues the merge of parts > 1. merge: 0 tree, 1 lse, 2 two_pass.
void launch_merge(const Params& params, int merge, void* stream);

}  // namespace warpmeter::attention::cuda_decode
