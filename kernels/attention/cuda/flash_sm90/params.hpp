#pragma once

#include <cstdint>

#include <cuda.h>

/// What the flash_sm90 kernels take, by value, shared by host code and device code. Tensor layouts: problem.hpp.
namespace warpmeter::attention::flash_sm90 {

/// A (batch, heads, rows, head_dim) operand of the copy engine: 16-byte aligned, strides in elements.
struct Operand {
  const void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

struct Shape {
  std::int64_t batch = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t seq_len = 0;
  std::int64_t kv_len = 0;
  int head_dim = 0;
  bool causal = false;
  float scale = 0;       ///< of the scores, > 0
  float scale_log2 = 0;  ///< scale * log2(e)
};

/// Where a launch's thread blocks draw their work items from: both 0 before, and 0 again after the launch.
struct WorkCounter {
  unsigned next;      ///< items drawn beyond each block's first
  unsigned finished;  ///< blocks that draw no more
};

struct ForwardArguments {
  Shape shape;
  Operand q, k, v;
  void* o = nullptr;
  std::int64_t o_batch_stride = 0, o_head_stride = 0, o_row_stride = 0;
  float* lse = nullptr;  ///< (batch, num_heads, seq_len)
  WorkCounter* work_counter = nullptr;
  int multiprocessors = 0;
};

/// The kernel's own parameters. Work items, tiles x heads of them, go head by head: a few heads' keys and values are in
/// use at once. When causal a head's longest tiles come first, so that long and short ones, compute and memory, mix; of
/// the last heads, from mixed_heads on, all longest tiles come first and the shortest last: the blocks finish together.
struct ForwardParams {
  CUtensorMap q, k, v;
  void* o;
  std::int64_t o_batch_stride, o_head_stride, o_row_stride;
  float* lse;
  WorkCounter* work_counter;
  float scale, scale_log2;
  int seq_len, kv_len, head_dim;
  int num_heads, group_size;  ///< group_size: query heads a key/value head
  int items, tiles, heads, mixed_heads;
};

}  // namespace warpmeter::attention::flash_sm90
