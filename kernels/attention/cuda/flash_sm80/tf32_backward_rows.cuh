#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_tile.cuh"

/// What the tf32 backward does by query rows before its other kernels: LSE, its rest and D = rowsum(O * dO), padded to
/// whole tiles, and a cleared dQ where it is a sum of additions. Bound by memory. Grid: x = (tile of kStatsRows rows,
/// batch x head) in the order of Schedule; a warp a row.
namespace warpmeter::attention::flash_sm80 {

constexpr int kStatsRows = 64;  // tiles of the other kernels divide it
constexpr int kStatsThreads = 256;

/// Row statistics in global memory: LSE, rest and D, each (batch x num_heads, padded rows). Rows behind seq_len and
/// rows that see no key have an LSE of +inf, which makes P = e^(s - LSE) zero whatever s is, and D = 0.
struct Tf32RowStats {
  float *lse, *rest, *d;
  std::int64_t padded_rows;
};

__host__ __device__ __forceinline__ std::int64_t padded_stats_rows(const Shape& shape) {
  return (shape.seq_len + kStatsRows - 1) / kStatsRows * kStatsRows;
}

__device__ __forceinline__ Tf32RowStats row_stats_of(const BackwardParams& params) {
  Tf32RowStats stats;
  stats.padded_rows = padded_stats_rows(params.shape);
  const std::int64_t count = params.shape.batch * params.shape.num_heads * stats.padded_rows;
  stats.lse = params.row_stats;
  stats.rest = stats.lse + count;
  stats.d = stats.rest + count;
  return stats;
}

/// e^(scale s - LSE) with the rest that LSE's rounding left.
__device__ __forceinline__ float probability(float s, float scale, float lse, float rest) {
  return exp_approx(fmaf(s, scale, -lse) - rest);
}

/// kClearDq: dQ = 0; T is float then.
template <class T, bool kClearDq>
__global__ void __launch_bounds__(kStatsThreads) tf32_prepare_kernel(const __grid_constant__ BackwardParams params) {
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  const std::int64_t batch = item.head / shape.num_heads;
  const std::int64_t head = item.head - batch * shape.num_heads;
  const Tf32RowStats stats = row_stats_of(params);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll 1
  for (int i = warp; i < kStatsRows; i += kStatsThreads / kWarpSize) {
    const std::int64_t row = item.tile * kStatsRows + i;
    float d = 0.0f, lse = -INFINITY, rest = 0.0f;
    if (row < shape.seq_len) {
      const T* const o = row_address<T>(params.o, batch, head, row);
      const T* const d_o = row_address<T>(params.d_o, batch, head, row);
      for (int c = lane; c < shape.head_dim; c += kWarpSize) d = fmaf(to_float(o[c]), to_float(d_o[c]), d);
      const std::int64_t index = item.head * shape.seq_len + row;
      lse = params.lse[index];
      if (params.lse_rest != nullptr) rest = params.lse_rest[index];
      if constexpr (kClearDq) {
        T* const dq = row_address<T>(params.dq, batch, head, row);
        for (int c = lane; c < shape.head_dim; c += kWarpSize) dq[c] = 0.0f;
      }
    }
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) d += __shfl_xor_sync(0xffffffffu, d, lanes);
    if (lane == 0) {
      const std::int64_t index = item.head * stats.padded_rows + row;
      const bool sees = lse != -INFINITY;
      stats.lse[index] = sees ? lse : INFINITY;
      stats.rest[index] = sees ? rest : 0.0f;
      stats.d[index] = sees ? d : 0.0f;
    }
  }
}

/// Statistics of kRows query rows in shared memory.
template <int kRows>
struct alignas(16) Tf32Stats {
  float lse[kRows];
  float rest[kRows];
  float d[kRows];
};

/// Starts their copy; the caller commits. `row` is the first, a multiple of kRows, of batch x head `head`.
template <int kRows>
__device__ __forceinline__ void load_tf32_stats(std::uint32_t destination, const Tf32RowStats& stats, std::int64_t head,
                                                std::int64_t row, int thread) {
  constexpr int kPieces = kRows / 4;  // of 16 bytes, an array
  static_assert(kStatsRows % kRows == 0 && 3 * kPieces <= 64);
  if (thread >= 3 * kPieces) return;
  const float* const source = thread < kPieces ? stats.lse : thread < 2 * kPieces ? stats.rest : stats.d;
  ptx::cp_async_16(destination + thread * 16, source + head * stats.padded_rows + row + thread % kPieces * 4, 16);
}

}  // namespace warpmeter::attention::flash_sm80
