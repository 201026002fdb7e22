#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_tile.cuh"

/// What the tf32 backward does by query rows before its other kernels: LSE, its rest and D = rowsum(O * dO), padded to
/// whole tiles, and a cleared dQ where it is a sum of additions. Bound by memory. Grid: x = (tile of kStatsRows rows,
/// batch x head) in the order of Schedule; a warp has eight rows.
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

/// Four elements k + t and k + t + 4 (t = lane % 4) of a row as the products' operands have them; zero behind `count`.
template <class T>
__device__ __forceinline__ void load_k_step(const T* row, int k, int count, int lane, float (&x)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = k + i * 4 + lane % 4;
    x[i] = c < count ? to_float(row[c]) : 0.0f;
  }
}

/// D of eight rows, lane / 4 of a warp; every lane of a row gets it. It is the diagonal of dO O^T, from the
/// instructions that make dP = dO V^T in the same order: a query that sees one key has O = V of it, and dP - D is 0 to
/// the last bit.
template <bool kSplit, class T>
__device__ __forceinline__ float row_products(const T* d_o, const T* o, int head_dim, int lane) {
  Tf32Sum<kSplit, 1, 1> sum;
  sum.clear();
#pragma unroll 4
  for (int k = 0; k < head_dim; k += 8) {
    float x[2], y[2];
    load_k_step(d_o, k, head_dim, lane, x);
    load_k_step(o, k, head_dim, lane, y);
    Tf32Operand<kSplit, 4> a[1];
    Tf32Operand<kSplit, 2> b[1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[0].set(2 * i, x[i]);
      a[0].set(2 * i + 1, 0.0f);  // rows 8 to 15
      b[0].set(i, y[i]);
    }
    tf32_step<kSplit, false>(sum, 0, a, b);
  }
  // Column lane / 4 of the row: in the row's lane lane / 8, of two columns the even or the odd one.
  const int row = lane / 4;
  const float even = __shfl_sync(0xffffffffu, sum.total(0, 0, 0), row * 4 + row / 2);
  const float odd = __shfl_sync(0xffffffffu, sum.total(0, 0, 1), row * 4 + row / 2);
  return row % 2 == 0 ? even : odd;
}

/// kClearDq: dQ = 0; T is float then. kSplit as the other kernels'.
template <class T, bool kSplit, bool kClearDq>
__global__ void __launch_bounds__(kStatsThreads) tf32_prepare_kernel(const __grid_constant__ BackwardParams params) {
  static_assert(kStatsThreads / kWarpSize * 8 == kStatsRows);
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  const std::int64_t batch = quotient(item.head, shape.num_heads);
  const std::int64_t head = item.head - batch * shape.num_heads;
  const Tf32RowStats stats = row_stats_of(params);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const std::int64_t first = item.tile * kStatsRows + warp * 8;
  const std::int64_t row = first + lane / 4;
  const std::int64_t from = min(row, shape.seq_len - 1);  // a row behind the last one takes part, for nothing
  const float d = row_products<kSplit>(row_address<T>(params.d_o, batch, head, from),
                                       row_address<T>(params.o, batch, head, from), shape.head_dim, lane);
  if constexpr (kClearDq) {
    for (std::int64_t r = first; r < min(first + 8, shape.seq_len); ++r) {
      T* const dq = row_address<T>(params.dq, batch, head, r);
      for (int c = lane; c < shape.head_dim; c += kWarpSize) dq[c] = 0.0f;
    }
  }
  if (lane % 4 != 0) return;
  float lse = -INFINITY, rest = 0.0f;
  if (row < shape.seq_len) {
    const std::int64_t index = item.head * shape.seq_len + row;
    lse = params.lse[index];
    if (params.lse_rest != nullptr) rest = params.lse_rest[index];
  }
  const std::int64_t index = item.head * stats.padded_rows + row;
  const bool sees = lse != -INFINITY;
  stats.lse[index] = sees ? lse : INFINITY;
  stats.rest[index] = sees ? rest : 0.0f;
  stats.d[index] = sees ? d : 0.0f;
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
