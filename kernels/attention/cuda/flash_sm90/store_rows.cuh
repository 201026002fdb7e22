#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/softmax.cuh"
#include "kernels/attention/cuda/ptx/math.cuh"

namespace warpmeter::attention::flash_sm90 {

/// Four registers of four neighbouring threads, transposed: afterwards thread t holds register t of threads 0 to 3.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int t) {
  // Two exchanges of halves, as in a 4 x 4 transposition by 2 x 2 blocks.
  const bool odd = t % 2 != 0, high = t >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? got : x[i];
    x[i + 1] = odd ? x[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 2);
    x[i] = high ? got : x[i];
    x[i + 2] = high ? x[i + 2] : got;
  }
}

/// What a warpgroup's rows are: 64 of one head.
struct RowsOfHead {
  int batch, head;
  int row;  ///< this thread's first; the other is 8 further
};

/// Stores LSE of this thread's rows and gives 1 / sum, by which O is yet to be multiplied.
__device__ __forceinline__ void close_rows(const ForwardParams& params, const RowsOfHead& rows, const RowState& state,
                                           float (&inverse)[2]) {
  const std::int64_t batch_head = static_cast<std::int64_t>(rows.batch) * params.num_heads + rows.head;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(state.sum[r]);
    const int row = rows.row + 8 * r;
    inverse[r] = fminf(ptx::reciprocal_approx(sum), 0x1.fffffep127f);  // finite where sum, and so O, is 0
    if (row < params.seq_len && threadIdx.x % 4 == 0) {
      constexpr float kLn2 = 0.693147180559945309f;
      // max * scale in two parts: one rounding in all.
      const float high = __fmul_rn(state.max[r], params.scale);
      const float low = __fmaf_rn(state.max[r], params.scale, -high);
      params.lse[batch_head * params.seq_len + row] =
          sum > 0.0f ? high + (low + ptx::log2_approx(sum) * kLn2) : -INFINITY;
    }
  }
}

/// Stores O * inverse of this thread's rows, in pieces of 16 bytes.
template <class T, int kCount>
__device__ __forceinline__ void store_output(const ForwardParams& params, const RowsOfHead& rows,
                                             const float (&o)[kCount], const float (&inverse)[2]) {
  const int quad_thread = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = rows.row + 8 * r;
    T* const out = static_cast<T*>(params.o.data) + rows.batch * params.o.batch_stride +
                   rows.head * params.o.head_stride + row * params.o.row_stride;
    constexpr int kColumnGroups = kCount / 4;  // of 8
#pragma unroll
    for (int group = 0; group < kColumnGroups; group += 4) {
      std::uint32_t piece[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Beyond the head dim: something, never stored.
        const int j = group + i < kColumnGroups ? group + i : group;
        piece[i] = ptx::pack2<T>(o[4 * j + 2 * r] * inverse[r], o[4 * j + 2 * r + 1] * inverse[r]);
      }
      transpose_quad(piece, quad_thread);
      const int column = (group + quad_thread) * 8;
      if (row < params.seq_len && column < params.head_dim) {
        *reinterpret_cast<uint4*>(out + column) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
      }
    }
  }
}

}  // namespace warpmeter::attention::flash_sm90
