#pragma once

#include "kernels/primer/cuda/toolbox.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared_address.cuh"

/// Matrix products of any size and on any device: the tile that batched_matmul and int4_matmul fall back on. Operands
/// come element by element from functions, so an operand may be stored in any way.
namespace warpmeter::primer::tile_matmul {

constexpr int kTile = 128;  ///< results of a block, both ways
constexpr int kThreads = 256;

/// fp32: steps of 8 along the inner dimension, a thread has 8 x 8 results, in four 4 x 4 corners 64 apart.
template <class LoadA, class LoadY, class Store>
__device__ __forceinline__ void multiply_fp32(std::int64_t inner, LoadA load_a, LoadY load_y, Store store) {
  constexpr int kStep = 8;
  __shared__ __align__(16) float a[kStep][kTile + 4], y[kStep][kTile];
  const int thread = threadIdx.x, x4 = thread % 16 * 4, y4 = thread / 16 * 4;
  float next_a[4], next_y[4], d[8][8] = {};
  const auto load = [&](std::int64_t k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      next_a[i] = load_a(thread / 8 + 32 * i, k + thread % 8);
      next_y[i] = load_y(k + thread / 128 + 2 * i, thread % 128);
    }
  };
  load(0);
  for (std::int64_t k = 0; k < inner; k += kStep) {
    __syncthreads();  // the step before is done with
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[thread % 8][thread / 8 + 32 * i] = next_a[i];
      y[thread / 128 + 2 * i][thread % 128] = next_y[i];
    }
    __syncthreads();
    if (k + kStep < inner) load(k + kStep);
#pragma unroll
    for (int step = 0; step < kStep; ++step) {
      float of_a[8], of_y[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(of_a + 4 * half) = *reinterpret_cast<const float4*>(&a[step][y4 + 64 * half]);
        *reinterpret_cast<float4*>(of_y + 4 * half) = *reinterpret_cast<const float4*>(&y[step][x4 + 64 * half]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) d[i][j] += of_a[i] * of_y[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) store(y4 + i % 4 + i / 4 * 64, x4 + j % 4 + j / 4 * 64, d[i][j]);
  }
}

/// 16 bits on the tensor cores by mma.sync, fp32 sums: steps of 32, eight warps of 64 x 32 results.
template <class T, class LoadA, class LoadY, class Store>
__device__ __forceinline__ void multiply_16bit(std::int64_t inner, LoadA load_a, LoadY load_y, Store store) {
  constexpr int kStep = 32, kLoads = kTile * kStep / kThreads;
  // Rows are padded by 16 bytes, so that the eight rows of a matrix that ldmatrix reads lie in different banks.
  __shared__ __align__(16) T a[kTile][kStep + 8], y[kStep][kTile + 8];
  const int thread = threadIdx.x, lane = thread % 32;
  const int warp_row = thread / 32 / 4 * 64, warp_col = thread / 32 % 4 * 32;
  T next_a[kLoads], next_y[kLoads];
  float d[4][4][4] = {};  // 16 x 8 results each
  const auto load = [&](std::int64_t k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      next_a[i] = load_a(thread / 32 + 8 * i, k + lane);
      next_y[i] = load_y(k + thread / 128 + 2 * i, thread % 128);
    }
  };
  load(0);
  for (std::int64_t k = 0; k < inner; k += kStep) {
    __syncthreads();  // the step before is done with
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      a[thread / 32 + 8 * i][lane] = next_a[i];
      y[thread / 128 + 2 * i][thread % 128] = next_y[i];
    }
    __syncthreads();
    if (k + kStep < inner) load(k + kStep);
#pragma unroll
    for (int step = 0; step < kStep; step += 16) {
      std::uint32_t of_a[4][4], of_y[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::ldmatrix_x4(of_a[i], ptx::shared_address(&a[warp_row + 16 * i + lane % 16][step + lane / 16 * 8]));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        ptx::ldmatrix_x4_trans(of_y[j], ptx::shared_address(&y[step + lane % 16][warp_col + 16 * j + lane / 16 * 8]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          ptx::mma_m16n8k16<T>(d[i][j], of_a[i], of_y[j / 2][j % 2 * 2], of_y[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        store(warp_row + 16 * i + lane / 4 + e / 2 * 8, warp_col + 8 * j + lane % 4 * 2 + e % 2, d[i][j][e]);
      }
    }
  }
}

/// Both: load_a(row, k) and load_y(k, col) give elements of type T, rows and columns counted from the tile's corner,
/// zeros beyond the operands' ends; store(row, col, sum) takes the results.
template <class T, class LoadA, class LoadY, class Store>
__device__ __forceinline__ void multiply(std::int64_t inner, LoadA load_a, LoadY load_y, Store store) {
  if constexpr (sizeof(T) == 4) {
    multiply_fp32(inner, load_a, load_y, store);
  } else {
    multiply_16bit<T>(inner, load_a, load_y, store);
  }
}

}  // namespace warpmeter::primer::tile_matmul
