#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"

/// What one warp does with tiles: operands out of shared memory, products on mma.sync.m16n8k16.
///
/// An accumulator of (16 * kM) x (8 * kN) is float[kM][kN][4]; with g = lane / 4, t = lane % 4, element [m][n][2 * h +
/// e] is row 16 m + 8 h + g, column 8 n + 2 t + e. Two neighbouring column tiles, rounded and packed, are the A operand
/// of a product over those 16 columns: P feeds the next product without leaving the registers.
namespace warpmeter::attention::flash_sm80 {

/// Byte offset of this lane's row for an A operand (rows x k), stored row by row.
template <int kTilePitch>
__device__ __forceinline__ std::uint32_t a_lane_offset(int lane) {
  return ((lane % 16) * kTilePitch + (lane / 16) * 8) * 2;
}
/// ... for a B operand (k x n) stored as n rows of k elements: two 8-wide n tiles and one k step a load.
template <int kTilePitch>
__device__ __forceinline__ std::uint32_t b_lane_offset(int lane) {
  return ((lane % 8 + (lane / 16) * 8) * kTilePitch + ((lane / 8) % 2) * 8) * 2;
}
/// ... for a B operand stored as k rows of n elements (transposed on load).
template <int kTilePitch>
__device__ __forceinline__ std::uint32_t b_trans_lane_offset(int lane) {
  return ((lane % 16) * kTilePitch + (lane / 16) * 8) * 2;
}
/// ... for an A operand (rows x k) stored as k rows of `rows` elements (transposed on load).
template <int kTilePitch>
__device__ __forceinline__ std::uint32_t a_trans_lane_offset(int lane) {
  return ((lane % 8 + (lane / 16) * 8) * kTilePitch + ((lane / 8) % 2) * 8) * 2;
}

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&acc)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
    }
  }
}

/// A operand fragments of k steps [0, kK): f[m][k].
template <int kM, int kK>
struct Fragments {
  std::uint32_t f[kM][kK][4];

  template <int kTilePitch>
  __device__ __forceinline__ void load(std::uint32_t lane_address) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int k = 0; k < kK; ++k) ptx::ldmatrix_x4(f[m][k], lane_address + (m * 16 * kTilePitch + k * 16) * 2);
    }
  }
};

/// acc += A B^T over kK k steps, A (16 kM rows) and B (8 kN rows) both stored row by row in shared memory.
template <class T, int kPitchA, int kPitchB, int kK, int kM, int kN>
__device__ __forceinline__ void product_abt(float (&acc)[kM][kN][4], std::uint32_t a_lane, std::uint32_t b_lane) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) ptx::ldmatrix_x4(a[m], a_lane + (m * 16 * kPitchA + k * 16) * 2);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, b_lane + (n * 8 * kPitchB + k * 16) * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_m16n8k16<T>(acc[m][n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<T>(acc[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// The same with A in registers.
template <class T, int kPitchB, int kK, int kM, int kN>
__device__ __forceinline__ void product_abt(float (&acc)[kM][kN][4], const Fragments<kM, kK>& a, std::uint32_t b_lane) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, b_lane + (n * 8 * kPitchB + k * 16) * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_m16n8k16<T>(acc[m][n], a.f[m][k], b[0], b[1]);
        ptx::mma_m16n8k16<T>(acc[m][n + 1], a.f[m][k], b[2], b[3]);
      }
    }
  }
}

/// acc += A B for one k step: A in registers, B (16 rows x 8 kN columns) stored row by row.
template <class T, int kPitchB, int kM, int kN>
__device__ __forceinline__ void product_ab_step(float (&acc)[kM][kN][4], const std::uint32_t (&a)[kM][4],
                                                std::uint32_t b_lane) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    std::uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, b_lane + n * 8 * 2);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      ptx::mma_m16n8k16<T>(acc[m][n], a[m], b[0], b[1]);
      ptx::mma_m16n8k16<T>(acc[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

/// acc += A B over kK k steps; f[k][m] of `a` are the fragments of one step.
template <class T, int kPitchB, int kK, int kM, int kN>
__device__ __forceinline__ void product_ab(float (&acc)[kM][kN][4], const std::uint32_t (&a)[kK][kM][4],
                                           std::uint32_t b_lane) {
#pragma unroll
  for (int k = 0; k < kK; ++k) product_ab_step<T, kPitchB>(acc, a[k], b_lane + k * 16 * kPitchB * 2);
}

/// acc += A^T B, A stored as 16 kK rows of columns, B as 16 kK rows x 8 kN columns.
template <class T, int kPitchA, int kPitchB, int kK, int kM, int kN>
__device__ __forceinline__ void product_atb(float (&acc)[kM][kN][4], std::uint32_t a_lane, std::uint32_t b_lane) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) ptx::ldmatrix_x4_trans(a[m], a_lane + (k * 16 * kPitchA + m * 16) * 2);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, b_lane + (k * 16 * kPitchB + n * 8) * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_m16n8k16<T>(acc[m][n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<T>(acc[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Writes an accumulator, times `factor[m][h]` by rows and rounded, into a tile whose row 0 is the accumulator's row 0.
template <class T, int kTilePitch, int kM, int kN>
__device__ __forceinline__ void store_accumulator(std::uint32_t tile, const float (&acc)[kM][kN][4],
                                                  const float (&factor)[kM][2], int lane) {
  const std::uint32_t address = tile + ((lane / 4) * kTilePitch + (lane % 4) * 2) * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        ptx::store_shared_u32(address + ((m * 16 + h * 8) * kTilePitch + n * 8) * 2,
                              ptx::pack2<T>(acc[m][n][2 * h] * factor[m][h], acc[m][n][2 * h + 1] * factor[m][h]));
      }
    }
  }
}

}  // namespace warpmeter::attention::flash_sm80
