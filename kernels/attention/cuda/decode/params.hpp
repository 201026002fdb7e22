#pragma once

#include <cstdint>

#include "kernels/attention/detail/decode_join.hpp"

namespace warpmeter::attention::cuda_decode {

enum class Element : std::int32_t { fp32, bf16, fp16 };

/// Keys that a warp scores at once.
inline constexpr int kWarpKeys = 16;

/// Warps of a block whose rows have up to `width` columns.
constexpr int warps_of(DecodeBlock shape, int width) {
  if (shape == DecodeBlock::wide) return 8;
  return shape == DecodeBlock::small && width > 128 ? 2 : 4;
}

enum class MergeKind : std::int32_t { tree, lse, two_pass };

inline constexpr int kMostClusterParts = 16;
inline constexpr int kMostLastBlockParts = 128;
/// Of the kernel for short sequences.
inline constexpr int kShortParts = 8, kShortWarps = 8, kMostShortRows = 8, kMostShortGroups = 2;

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
  int parts = 1;           ///< streams, each a partial result
  int uniform_length = 0;  ///< of every sequence; 0: they differ, see lengths
  int uniform_blocks = 0;  ///< of a sequence of that length
  int uniform_share = 0;   ///< uniform_blocks / parts
  MergeKind merge = MergeKind::tree;
  Join join = Join::none;
  DecodeBlock shape = DecodeBlock::usual;
  bool pass_l2 = false;  ///< keys and values are the first to leave the L2 cache
  int short_groups = 0;  ///< groups of a warp in the kernel for short sequences; 0: not that kernel
  int stages = 8;        ///< groups that a warp's ring holds; no more than it has to copy, or the kernel's own number
  unsigned* counters =
      nullptr;    ///< of last_block: zeros, one a (sequence, key/value head, row block); zeros afterwards
  int block = 0;  ///< keys; a multiple of kWarpKeys
  int part_width = 0;
  bool round_robin = false;
  bool causal = true;
  float scale = 0;
  Element query_element = Element::fp32, cache_element = Element::fp32;
};

/// What a launch comes to on the current device.
struct Residency {
  int row_blocks;          ///< of a key/value head
  int row_block_rows;      ///< query rows of one
  int blocks_a_processor;  ///< blocks of threads that fit on one SM
  bool clusters;           ///< parts can be clusters
};
[[nodiscard]] Residency residency(const Params& params);
/// Query rows of one block of threads.
[[nodiscard]] int row_block_rows(const Params& params);
/// Clusters of params.parts blocks that run at once.
[[nodiscard]] int active_clusters(const Params& params);
/// Sixteen-bit queries and cache of one type in rows that start on 16 bytes; the joins within a launch are its own.
[[nodiscard]] bool on_tensor_cores(const Params& params);
/// Whether there are blocks of params.shape, and on the current device room for one.
[[nodiscard]] bool has_blocks(const Params& params);
/// What short_groups can be: sequences of one length in dense rows, one query token, kShortParts neighbouring parts
/// in a cluster, each short enough to be copied at once, and room for the usual blocks. 0 where that is not so.
[[nodiscard]] int short_groups(const Params& params);
[[nodiscard]] const char* kernel_name(const Params& params);

/// Counters for one launch of `count`, at most kMostCounters, on the current device: those of other launches that may
/// be under way at the same time are others, up to kMostCounters x 16 in all.
inline constexpr int kMostCounters = 4096;
[[nodiscard]] unsigned* next_counters(int count);
/// Enqueues the streams; they write o and lse themselves unless the join is a kernel's.
void launch_streams(const Params& params, void* stream);
/// Enqueues the merge of Join::kernel.
void launch_merge(const Params& params, void* stream);

}  // namespace warpmeter::attention::cuda_decode
