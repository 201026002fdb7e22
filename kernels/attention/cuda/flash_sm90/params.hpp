#pragma once

#include <cstdint>

#include <cuda.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"

/// What the flash_sm90 kernels take, by value, shared by host code and device code. Tensor layouts: problem.hpp.
namespace warpmeter::attention::flash_sm90 {

using flash_sm80::ConstTensorView, flash_sm80::Shape, flash_sm80::TensorView;

/// Where a launch's thread blocks draw their work items from: both 0 before, and 0 again after the launch.
struct WorkCounter {
  unsigned next;      ///< items drawn beyond each block's first
  unsigned finished;  ///< blocks that draw no more
};

/// Where keys and values in pages lie: row j of a batch entry in row j % page_size of page table[entry * table_stride +
/// j / page_size]. K's and V's batch stride is then from one page to the next, and their rows are a page's.
struct Pages {
  const std::int32_t* table = nullptr;  ///< in device memory; nullptr: not in pages
  std::int64_t table_stride = 0;
  std::int64_t page_size = 0;  ///< a power of two, 16 to 256
  std::int64_t count = 0;      ///< that there are: entries of the table are below it
};
inline constexpr int kPagedBlock = 128;  ///< keys a step where they lie in pages

struct ForwardArguments {
  Shape shape;
  /// What the copy engine reads: rows on 16 bytes, strides above 0; q's batch stride also 0, the same queries for all.
  ConstTensorView q, k, v;
  TensorView o;          ///< rows on 16 bytes
  float* lse = nullptr;  ///< (batch, num_heads, seq_len)
  WorkCounter* work_counter = nullptr;
  int multiprocessors = 0;
  Pages pages;  ///< for a kernel of keys and values in pages
};

/// The kernel's own parameters. Work items, tiles x heads of them, go head by head: a few heads' keys and values are in
/// use at once. When causal a head's longest tiles come first, so that long and short ones, compute and memory, mix; of
/// the last heads, from mixed_heads on, all longest tiles come first and the shortest last: the blocks finish together.
struct ForwardParams {
  CUtensorMap q, k, v;
  CUtensorMap o_map;  ///< with ForwardConfig::kStagedOutput
  TensorView o;
  float* lse;
  WorkCounter* work_counter;
  float scale, scale_log2;
  int seq_len, kv_len, head_dim;
  int num_heads, group_size;  ///< group_size: query heads a key/value head
  int items, tiles, heads, mixed_heads;
  int query_batches;  ///< 1, or 0 where all batch entries have the first one's queries
  int row_shift;  ///< whole warpgroups that the first tile lacks, in rows, when causal: the last tile, whose rows see
                  ///< the most keys, is then full
};

/// Of a kernel whose keys and values lie in pages. A key block is `boxes` boxes of the copy engine, one a page, or one
/// that is a page's part.
struct PagedForwardParams : ForwardParams {
  const std::int32_t* pages;
  std::int64_t pages_stride;
  int page_shift;  ///< log2 of the page size
  int boxes, box_bytes;
};

}  // namespace warpmeter::attention::flash_sm90
