#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/softmax.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/quad.cuh"
#include "kernels/ptx/tma.cuh"

namespace warpmeter::attention::flash_sm90 {

/// What a warpgroup's rows are: 64 of one head.
struct RowsOfHead {
  int batch, head;
  int row;  ///< this thread's first; the other is 8 further; neither need be one of the head's
};

__device__ __forceinline__ bool is_row(const ForwardParams& params, int row) {
  return static_cast<unsigned>(row) < static_cast<unsigned>(params.seq_len);
}

/// Stores LSE of this thread's rows and gives 1 / sum, by which O is yet to be multiplied; 0 for a row that saw
/// nothing.
__device__ __forceinline__ void close_rows(const ForwardParams& params, const RowsOfHead& rows, const RowState& state,
                                           float (&inverse)[2]) {
  const std::int64_t batch_head = static_cast<std::int64_t>(rows.batch) * params.num_heads + rows.head;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(state.sum[r]);
    const int row = rows.row + 8 * r;
    inverse[r] = sum == 0.0f ? 0.0f : ptx::reciprocal_approx(sum);
    if (is_row(params, row) && threadIdx.x % 4 == 0) {
      constexpr float kLn2 = 0.693147180559945309f;
      // max * scale in two parts: one rounding in all.
      const float high = __fmul_rn(state.max[r], params.scale);
      const float low = __fmaf_rn(state.max[r], params.scale, -high);
      params.lse[batch_head * params.seq_len + row] =
          sum == 0.0f ? -INFINITY : high + (low + ptx::log2_approx(sum) * kLn2);
    }
  }
}

/// O of rows that saw nothing becomes 0, which it is not yet where a value is inf or NaN. Such rows are rare.
template <int kCount>
__device__ __forceinline__ void clear_unseen(float (&o)[kCount], const float (&inverse)[2]) {
  if (!__any_sync(0xffffffffu, inverse[0] == 0.0f || inverse[1] == 0.0f)) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] = inverse[i % 4 / 2] == 0.0f ? 0.0f : o[i];
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
      ptx::transpose_quad(piece, quad_thread);
      const int column = (group + quad_thread) * 8;
      if (is_row(params, row) && column < params.head_dim) {
        *reinterpret_cast<uint4*>(out + column) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
      }
    }
  }
}

/// The same through `staging`, kOutputBytes of shared memory of this warp, and the copy engine: a third of the
/// instructions. The memory is in use until the warp's first thread has waited (ptx::bulk_wait_read).
template <class T, class Config>
__device__ __forceinline__ void send_output(const ForwardParams& params, const RowsOfHead& rows, std::uint32_t staging,
                                            const float (&o)[Config::kHeadDim / 2], const float (&inverse)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) ptx::bulk_wait_read();
  __syncwarp();
  // Matrices of an stmatrix: rows 0 to 7 and 8 to 15 of eight columns, then of the next eight. The engine expects the
  // 16-byte pieces of a row exchanged by the row's number (the 128-byte swizzle).
  const std::uint32_t own = staging + lane % 16 * 128 + ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
  for (int j = 0; j < Config::kHeadDim / 8; j += 2) {
    const std::uint32_t address = (own + j / 8 * Config::kOutputPanelBytes) ^ (j % 8 * 16);
    ptx::stmatrix_x4(address, ptx::pack2<T>(o[4 * j] * inverse[0], o[4 * j + 1] * inverse[0]),
                     ptx::pack2<T>(o[4 * j + 2] * inverse[1], o[4 * j + 3] * inverse[1]),
                     ptx::pack2<T>(o[4 * j + 4] * inverse[0], o[4 * j + 5] * inverse[0]),
                     ptx::pack2<T>(o[4 * j + 6] * inverse[1], o[4 * j + 7] * inverse[1]));
  }
  ptx::async_proxy_fence();
  __syncwarp();
  if (lane == 0 && rows.row >= 0) {  // below the first row: whole warps, and coordinates the engine does not take
#pragma unroll
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      ptx::tma_store_4d(&params.o_map, staging + panel * Config::kOutputPanelBytes, panel * 64, rows.row, rows.head,
                        rows.batch);
    }
    ptx::bulk_commit();
  }
}

}  // namespace warpmeter::attention::flash_sm90
