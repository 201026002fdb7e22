#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/attention/cuda/flash_sm80/warp_tile.cuh"
#include "kernels/ptx/math.cuh"

/// What the backward does by query rows, before and after the key-block kernel.
///
/// prepare: row_stats = (LSE * log2(e), D = rowsum(O * dO)) and a cleared dQ accumulator; one block a query tile.
/// finish: dQ = scale * accumulator, in T; one block a query tile.
/// Both are bound by memory. Grid: x = (query tile, batch x head) in the order of Schedule.
namespace warpmeter::attention::flash_sm80 {

/// Of one query tile, in global and in shared memory. Rows behind seq_len and rows that see no key have an LSE of +inf,
/// which makes P = 2^(s - LSE) zero whatever s is, and D = 0.
template <int kRows>
struct alignas(16) RowStats {
  float lse_log2[kRows];
  float d[kRows];
};

/// Where a thread's fragments of the dQ accumulator of a query tile are: the first of kDqFragments, kThreads apart.
/// Every warp access is one dense 512-byte line; the layout is known to the finish kernel alone.
template <class Traits>
__device__ __forceinline__ float4* dq_fragment(float* accumulator, std::int64_t query_tile, int thread) {
  return reinterpret_cast<float4*>(accumulator) + query_tile * (Traits::kDqFragments * Traits::kThreads) + thread;
}

constexpr int kPrepareThreads = 128;
constexpr float kLog2e = 1.4426950408889634f;

template <class Traits>
__global__ void __launch_bounds__(kPrepareThreads)
    backward_prepare_kernel(const __grid_constant__ BackwardParams params) {
  using T = typename Traits::T;
  constexpr int kRowsM = Traits::kRowsM;
  constexpr int kLanes = copy_lanes_per_row(Traits::kHeadDim);
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  const std::int64_t batch = item.head / shape.num_heads;
  const std::int64_t head = item.head - batch * shape.num_heads;
  const std::int64_t first_query = item.tile * kRowsM;
  const int rows = at_most(shape.seq_len - first_query, kRowsM);
  const std::int64_t tile = item.head * params.schedule.tiles + item.tile;
  const int thread = threadIdx.x;
  const int column = thread % kLanes * kElementsPerCopy;
  RowStats<kRowsM>& stats = reinterpret_cast<RowStats<kRowsM>*>(params.row_stats)[tile];

  const T* o = row_address<T>(params.o, batch, head, first_query) + column;
  const T* d_o = row_address<T>(params.d_o, batch, head, first_query) + column;
#pragma unroll 4
  for (int row = thread / kLanes; row < kRowsM; row += kPrepareThreads / kLanes) {
    float d = 0.0f;
    if (row < rows && column < shape.head_dim) {
      const T* a = o + row * params.o.row_stride;
      const T* b = d_o + row * params.d_o.row_stride;
      if constexpr (Traits::kVector) {
        const uint4 x = *reinterpret_cast<const uint4*>(a);
        const uint4 y = *reinterpret_cast<const uint4*>(b);
        const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 u = ptx::unpack2<T>(xs[i]), w = ptx::unpack2<T>(ys[i]);
          d = fmaf(u.x, w.x, d);
          d = fmaf(u.y, w.y, d);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kElementsPerCopy; ++i) {
          if (column + i < shape.head_dim) d = fmaf(static_cast<float>(a[i]), static_cast<float>(b[i]), d);
        }
      }
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) d += __shfl_xor_sync(0xffffffffu, d, lanes);
    if (column == 0) {
      float lse = -INFINITY;
      if (row < rows) lse = params.lse[item.head * shape.seq_len + first_query + row];
      stats.lse_log2[row] = lse == -INFINITY ? INFINITY : lse * kLog2e;
      stats.d[row] = lse == -INFINITY ? 0.0f : d;
    }
  }

  constexpr int kFragments = Traits::kDqFragments * Traits::kThreads;
  float4* const accumulator = reinterpret_cast<float4*>(params.dq_accumulator) + tile * kFragments;
  for (int i = thread; i < kFragments; i += kPrepareThreads) accumulator[i] = make_float4(0, 0, 0, 0);
  if (params.deterministic && thread == 0) params.turns[tile] = 0;
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads)
    backward_finish_kernel(const __grid_constant__ BackwardParams params) {
  using T = typename Traits::T;
  constexpr int kRowsM = Traits::kRowsM, kTilePitch = Traits::kTilePitch;
  constexpr int kM = Traits::kDqM, kD = Traits::kDqD;
  __shared__ __align__(16) T tile_of_dq[kRowsM * kTilePitch];
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;

  const float4* const in =
      dq_fragment<Traits>(params.dq_accumulator, item.head * params.schedule.tiles + item.tile, thread);
  float dq[kM][kD][4];
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    factor[m][0] = factor[m][1] = shape.scale;
#pragma unroll
    for (int n = 0; n < kD; ++n) {
      const float4 f = in[(m * kD + n) * Traits::kThreads];
      dq[m][n][0] = f.x;
      dq[m][n][1] = f.y;
      dq[m][n][2] = f.z;
      dq[m][n][3] = f.w;
    }
  }
  const int row = warp % Traits::kDqWarpsM * (kM * 16);
  const int column = warp / Traits::kDqWarpsM * (kD * 8);
  const std::uint32_t shared = ptx::shared_address(tile_of_dq);
  store_accumulator<T, kTilePitch>(shared + (row * kTilePitch + column) * 2, dq, factor, lane);
  __syncthreads();  // the tile is complete
  const std::int64_t batch = item.head / shape.num_heads;
  const std::int64_t head = item.head - batch * shape.num_heads;
  const std::int64_t first_query = item.tile * kRowsM;
  TileCopy<T, Traits::kHeadDim, kRowsM, Traits::kThreads, Traits::kVector>::store(
      shared, row_address<T>(params.dq, batch, head, first_query), params.dq.row_stride,
      at_most(shape.seq_len - first_query, kRowsM), shape.head_dim, thread);
}

}  // namespace warpmeter::attention::flash_sm80
