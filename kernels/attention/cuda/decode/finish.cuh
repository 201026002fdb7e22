#pragma once

#include "kernels/attention/cuda/decode/part_weights.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/shared_address.cuh"

/// The end of a block of the tensor core kernel: its warps' results become one, the parts of a row meet, O and LSE are
/// written. One launch for all of it, as another kernel costs a small problem as much as its attention.
namespace warpmeter::attention::cuda_decode {

/// What the warps left in shared memory: o of row r of warp w at o[(w * tile_rows + r) * width + c], m and l alike.
/// `top` and `sum` take m and l of the block's rows.
struct WarpResults {
  float *o, *m, *l, *top, *sum;
  int tile_rows, width;
};

struct RowBlock {
  int batch, kv_head, part, index, first_row, rows;
};

__device__ __forceinline__ void write_lse(const Params& p, const RowBlock& block, int row, float lse) {
  p.lse[lse_offset(p, block.batch, block.kv_head, row)] = lse;
}

/// The warps' results joined (merge.hpp's lemma): into warp 0's place where the join is a cluster's, to the part's
/// place in memory, or as O and LSE.
template <int kD, int kWarps, int kThreads>
__device__ __forceinline__ void join_warps(const Params& p, const RowBlock& block, const WarpResults& w) {
  const float factor = p.scale * kLog2e;
  constexpr int kQuads = kD / 4;  // of columns: a row's weights are computed once for four
  for (int i = threadIdx.x; i < block.rows * kQuads; i += kThreads) {
    const int r = i / kQuads;
    const int c = i % kQuads * 4;
    if (c >= p.head_dim) continue;  // a multiple of 8
    float top = kMinusInfinity;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) top = fmaxf(top, w.m[warp * w.tile_rows + r]);
    float sum = 0;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const int at = warp * w.tile_rows + r;
      const float weight = weight_of(w.m[at], top, factor);
      const float4 o = *reinterpret_cast<const float4*>(w.o + at * w.width + c);
      sum = fmaf(weight, w.l[at], sum);
      value.x = fmaf(weight, o.x, value.x);
      value.y = fmaf(weight, o.y, value.y);
      value.z = fmaf(weight, o.z, value.z);
      value.w = fmaf(weight, o.w, value.w);
    }
    const int row = block.first_row + r;
    if (p.join == Join::none) {
      const float inverse = sum == 0 ? 0.0f : 1 / sum;
      const std::int64_t to = output_offset(p, block.batch, block.kv_head, row) + c;
      store_element(p.o, to, p.query_element, value.x * inverse);
      store_element(p.o, to + 1, p.query_element, value.y * inverse);
      store_element(p.o, to + 2, p.query_element, value.z * inverse);
      store_element(p.o, to + 3, p.query_element, value.w * inverse);
      if (c == 0) write_lse(p, block, row, sum == 0 ? kMinusInfinity : top * p.scale + logf(sum));
    } else if (p.join == Join::cluster) {
      *reinterpret_cast<float4*>(w.o + r * w.width + c) = value;  // read by this thread alone until now
      if (c == 0) {
        w.top[r] = top;
        w.sum[r] = sum;
      }
    } else {
      const std::int64_t at =
          (static_cast<std::int64_t>(block.batch * p.num_kv_heads + block.kv_head) * p.parts + block.part) * p.rows +
          row;
      *reinterpret_cast<float4*>(p.part_o + at * p.part_width + c) = value;
      if (c == 0) {
        p.part_m[at] = top;
        p.part_l[at] = sum;
      }
    }
  }
}

/// The blocks of a cluster have a part each; a warp of one of them takes 32 columns of a row.
template <int kWarps>
__device__ __forceinline__ void merge_in_cluster(const Params& p, const RowBlock& block, const WarpResults& w) {
  ptx::sync_cluster();  // every part is in its block's shared memory
  const int lane = threadIdx.x % 32;
  const int chunks = (p.head_dim + 31) / 32;
  const int first = static_cast<int>(ptx::rank_in_cluster()) + threadIdx.x / 32 * p.parts;
  const std::uint32_t o = ptx::shared_address(w.o);
  const std::uint32_t top = ptx::shared_address(w.top);
  const std::uint32_t sum = ptx::shared_address(w.sum);
  for (int unit = first; unit < block.rows * chunks; unit += kWarps * p.parts) {
    const int r = unit / chunks;
    const int c = (unit - r * chunks) * 32 + lane;
    const std::int64_t to = output_offset(p, block.batch, block.kv_head, block.first_row + r) + c;
    float m[1] = {kMinusInfinity}, l[1] = {0}, weight[1], part[kMostClusterParts];
    if (lane < p.parts) {
      m[0] = ptx::load_float_of(top + r * 4, lane);
      l[0] = ptx::load_float_of(sum + r * 4, lane);
    }
#pragma unroll
    for (int i = 0; i < kMostClusterParts; ++i) {
      part[i] = i < p.parts ? ptx::load_float_of(o + (r * w.width + c) * 4, i) : 0.0f;
    }
    const float lse = part_weights(p.merge, p.parts, p.scale, m, l, weight);
    float value = 0;
#pragma unroll
    for (int i = 0; i < kMostClusterParts; ++i) value = fmaf(__shfl_sync(0xffffffffu, weight[0], i), part[i], value);
    if (c < p.head_dim) store_element(p.o, to, p.query_element, value);
    if (c == 0) write_lse(p, block, block.first_row + r, lse);
  }
  ptx::leave_cluster();
}

/// One row from its parts in memory, by one warp: four columns a lane.
template <int kRegisters>
__device__ __forceinline__ void merge_row(const Params& p, const RowBlock& block, int row) {
  const int lane = threadIdx.x % 32;
  const std::int64_t first =
      static_cast<std::int64_t>(block.batch * p.num_kv_heads + block.kv_head) * p.parts * p.rows + row;
  float m[kRegisters], l[kRegisters], weight[kRegisters];
#pragma unroll
  for (int j = 0; j < kRegisters; ++j) {
    const int i = j * 32 + lane;
    const bool there = i < p.parts;
    const std::int64_t at = first + static_cast<std::int64_t>(i) * p.rows;
    m[j] = there ? __ldcg(p.part_m + at) : kMinusInfinity;
    l[j] = there ? __ldcg(p.part_l + at) : 0.0f;
  }
  const float lse = part_weights(p.merge, p.parts, p.scale, m, l, weight);
  const std::int64_t to = output_offset(p, block.batch, block.kv_head, row);
  for (int c0 = 0; c0 < p.head_dim; c0 += 128) {
    const int c = c0 + lane * 4;
    const bool there = c < p.head_dim;
    const float* const from = p.part_o + first * p.part_width + (there ? c : 0);
    const std::int64_t step = static_cast<std::int64_t>(p.rows) * p.part_width;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < kRegisters; ++j) {
      const int count = min(32, p.parts - j * 32);
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const float4 o = __ldcg(reinterpret_cast<const float4*>(from + (j * 32 + i) * step));
        const float by = __shfl_sync(0xffffffffu, weight[j], i);
        value.x = fmaf(by, o.x, value.x);
        value.y = fmaf(by, o.y, value.y);
        value.z = fmaf(by, o.z, value.z);
        value.w = fmaf(by, o.w, value.w);
      }
    }
    if (there) {
      store_element(p.o, to + c, p.query_element, value.x);
      store_element(p.o, to + c + 1, p.query_element, value.y);
      store_element(p.o, to + c + 2, p.query_element, value.z);
      store_element(p.o, to + c + 3, p.query_element, value.w);
    }
  }
  if (lane == 0) write_lse(p, block, row, lse);
}

/// Whoever of a row block's parts is done last merges them. `flag`: a word of shared memory.
template <int kWarps>
__device__ __forceinline__ void merge_by_last_block(const Params& p, const RowBlock& block, int row_blocks, int* flag) {
  __threadfence();  // this thread's share of the part, before the count of it
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* const counter = p.counters + (block.batch * p.num_kv_heads + block.kv_head) * row_blocks + block.index;
    const bool last = atomicAdd(counter, 1u) == static_cast<unsigned>(p.parts) - 1;
    if (last) *counter = 0;  // nobody else counts on it in this launch
    *flag = last ? 1 : 0;
  }
  __syncthreads();
  if (*flag == 0) return;
  __threadfence();  // the count, before what the others wrote ahead of it
  for (int r = threadIdx.x / 32; r < block.rows; r += kWarps) {
    if (p.parts <= 32) {
      merge_row<1>(p, block, block.first_row + r);
    } else {
      merge_row<kMostLastBlockParts / 32>(p, block, block.first_row + r);
    }
  }
}

}  // namespace warpmeter::attention::cuda_decode
