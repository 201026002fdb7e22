#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/ptx/math.cuh"

namespace warpmeter::attention::cuda_decode {

constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

__device__ __forceinline__ float load_element(const void* data, std::int64_t at, Element element) {
  switch (element) {
    case Element::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    case Element::fp16:
      return __half2float(static_cast<const __half*>(data)[at]);
    case Element::fp32:
      break;
  }
  return static_cast<const float*>(data)[at];
}
__device__ __forceinline__ void store_element(void* data, std::int64_t at, Element element, float value) {
  switch (element) {
    case Element::bf16:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
      return;
    case Element::fp16:
      static_cast<__half*>(data)[at] = __float2half_rn(value);
      return;
    case Element::fp32:
      static_cast<float*>(data)[at] = value;
      return;
  }
}

__device__ __forceinline__ int length_of(const Params& p, int batch) {
  return p.uniform_length != 0 ? p.uniform_length : p.lengths[batch];  // a load from memory before all others
}

/// The keys of one stream, in groups of `keys` (which divides the block): group g starts at key(g).
struct Stream {
  int first_block, step, groups, groups_a_block, block, length;

  __device__ Stream(const Params& p, int batch, int part, int keys) {
    length = length_of(p, batch);
    block = p.block;
    groups_a_block = block / keys;
    const bool known = p.uniform_length != 0;  // then the host has divided
    const int blocks = known ? p.uniform_blocks : (length - 1) / block + 1;
    int count;
    if (p.round_robin) {
      first_block = part;
      step = p.parts;
      count = part < blocks ? (blocks - part + p.parts - 1) / p.parts : 0;
    } else {
      // The first blocks % parts parts have one more.
      const int even = known ? p.uniform_share : blocks / p.parts;
      const int more = blocks - even * p.parts;
      first_block = part * even + min(part, more);
      step = 1;
      count = even + (part < more ? 1 : 0);
    }
    groups = count * groups_a_block;
    // The last block of the sequence may be cut.
    if (count > 0 && first_block + (count - 1) * step == blocks - 1) {
      const int last = length - (blocks - 1) * block;
      groups -= groups_a_block - (last + keys - 1) / keys;
    }
  }
  __device__ int key(int group, int keys) const {
    if (step == 1) return first_block * block + group * keys;  // no division
    return (first_block + group / groups_a_block * step) * block + group % groups_a_block * keys;
  }
};

/// Where the rows of a key's page start, relative to k or v with the head's offset; the key's own row not yet added.
__device__ __forceinline__ std::int64_t page_base(const Params& p, int batch, int key) {
  const std::int64_t page = p.page_shift < 0 ? batch : p.pages[batch * p.pages_stride + (key >> p.page_shift)];
  return page * p.page_stride;
}
__device__ __forceinline__ int row_in_page(const Params& p, int key) {
  return p.page_shift < 0 ? key : key & ((1 << p.page_shift) - 1);
}

/// Row `row` of a key/value head is query token `token` of its group's head `head`.
struct QueryRow {
  int token, head;
  __device__ __forceinline__ QueryRow(const Params& p, int row) {
    token = p.tokens == 1 ? 0 : row / p.group;
    head = row - token * p.group;
  }
};

/// Keys that row `row` of a head sees.
__device__ __forceinline__ int limit_of(const Params& p, int length, int row) {
  return p.causal ? length - p.tokens + QueryRow(p, row).token + 1 : length;
}

__device__ __forceinline__ std::int64_t query_offset(const Params& p, int batch, int kv_head, int row) {
  const QueryRow at(p, row);
  return batch * p.q_batch_stride + (kv_head * p.group + at.head) * p.q_head_stride + at.token * p.q_token_stride;
}
__device__ __forceinline__ std::int64_t output_offset(const Params& p, int batch, int kv_head, int row) {
  const QueryRow at(p, row);
  return batch * p.o_batch_stride + (kv_head * p.group + at.head) * p.o_head_stride + at.token * p.o_token_stride;
}
__device__ __forceinline__ std::int64_t lse_offset(const Params& p, int batch, int kv_head, int row) {
  const QueryRow at(p, row);
  return (static_cast<std::int64_t>(batch) * p.num_heads + kv_head * p.group + at.head) * p.tokens + at.token;
}

/// What a weight multiplies by: 2^((m - top) * factor), 0 for a part that saw nothing.
__device__ __forceinline__ float weight_of(float m, float top, float factor) {
  return m == kMinusInfinity ? 0.0f : exp2f((m - top) * factor);
}

/// Joins the warps' results of one block (merge.hpp's lemma) and writes them: as a partial, or O and LSE where there is
/// one. Warp w has o of row r at o[(w * rows_of_tile + r) * width + c], its m and l in m[w * rows_of_tile + r].
template <int kWarps, int kThreads>
__device__ __forceinline__ void write_rows(const Params& p, int batch, int kv_head, int part, int first_row,
                                           int tile_rows, const float* o, const float* m, const float* l, int width) {
  const int rows = min(tile_rows, p.rows - first_row);
  const float factor = p.scale * kLog2e;
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int r = i / width;
    const int c = i - r * width;
    if (c >= p.head_dim) continue;
    float top = kMinusInfinity;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, m[w * tile_rows + r]);
    float sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(m[w * tile_rows + r], top, factor);
      sum += weight * l[w * tile_rows + r];
      value += weight * o[(w * tile_rows + r) * width + c];
    }
    const int row = first_row + r;
    if (p.join == Join::none) {
      store_element(p.o, output_offset(p, batch, kv_head, row) + c, p.query_element, sum == 0 ? 0.0f : value / sum);
      if (c == 0) {
        p.lse[lse_offset(p, batch, kv_head, row)] = sum == 0 ? kMinusInfinity : top * p.scale + logf(sum);
      }
    } else {
      const std::int64_t at =
          (static_cast<std::int64_t>(batch * p.num_kv_heads + kv_head) * p.parts + part) * p.rows + row;
      p.part_o[at * p.part_width + c] = value;
      if (c == 0) {
        p.part_m[at] = top;
        p.part_l[at] = sum;
      }
    }
  }
}

}  // namespace warpmeter::attention::cuda_decode
