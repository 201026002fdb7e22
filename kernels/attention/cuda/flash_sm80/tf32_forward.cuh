#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/forward_work.cuh"
#include "kernels/attention/cuda/flash_sm80/launch_grids.cuh"
#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_tile.cuh"

/// Forward of attention with tf32 products on mma.sync (sm_80 and later): fp32 by 3xTF32, tf32, and any other type
/// whose elements are exact in tf32.
///
/// Formulas and operands as in forward.cuh. Scores are scaled and compared with the running maximum in natural units,
/// where scale is often a power of two and the product exact: large scores keep their digits. With lse_rest the forward
/// also keeps what LSE lost in rounding to fp32, so that the backward gets P to fp32 accuracy for scores of any size.
/// Grid: x = one block a (query tile of kRowsM rows, batch x head), in the order of Schedule; a warp has 16 kM rows.
/// Loop: key tiles of kRowsN from the last visible one down, two stages of K and V, one barrier a tile.
/// Source: Dao, "FlashAttention-2", 2023; Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores",
/// 2022 (the split).
namespace warpmeter::attention::flash_sm80 {

template <class T_, bool kSplit_, int kHeadDim_, int kRowsM_, int kRowsN_, int kWarps_, int kMinBlocks_>
struct Tf32ForwardTraits {
  using T = T_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowsM = kRowsM_;
  static constexpr int kRowsN = kRowsN_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kTilePitch = kTf32Pitch<kHeadDim>;
  static constexpr int kM = kRowsM / kWarps / 16;
  static constexpr int kN = kRowsN / 8;
  static constexpr int kK = kHeadDim / 8;
  static constexpr int kD = kHeadDim / 8;
  static constexpr int kGroup = kTf32Group<kD, (kM * kD > 16 ? 2 : 4)>;  // O takes the registers
  static_assert(kRowsM % (16 * kWarps) == 0 && kRowsN % 16 == 0 && kHeadDim % 16 == 0);

  struct Stage {
    alignas(16) float k[kRowsN * kTilePitch];
    alignas(16) float v[kRowsN * kTilePitch];
  };
  struct SharedStorage {
    Stage stages[2];
    alignas(16) float q[kRowsM * kTilePitch];
    ForwardWork work;
  };
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    tf32_forward_kernel(const __grid_constant__ ForwardParams params) {
  using T = typename Traits::T;
  constexpr bool kSplit = Traits::kSplit;
  constexpr int kHeadDim = Traits::kHeadDim, kRowsM = Traits::kRowsM, kRowsN = Traits::kRowsN;
  constexpr int kTilePitch = Traits::kTilePitch, kThreads = Traits::kThreads;
  constexpr int kM = Traits::kM, kN = Traits::kN, kK = Traits::kK, kD = Traits::kD;
  constexpr int kGroup = Traits::kGroup;
  using Storage = typename Traits::SharedStorage;

  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const std::uint32_t shared = ptx::shared_address(shared_bytes);
  constexpr std::uint32_t kStageBytes = sizeof(typename Traits::Stage);
  constexpr std::uint32_t kValueOffset = offsetof(typename Traits::Stage, v);
  const std::uint32_t q_tile = shared + offsetof(Storage, q);
  const Shape& shape = params.shape;
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int warp_row = warp * (kM * 16);

  ForwardWork& work = reinterpret_cast<Storage*>(shared_bytes)->work;
  if (thread == 0) work = forward_work<T>(params, kRowsM, kRowsN);
  __syncthreads();  // `work` is written
  const int tiles = work.tiles;

  const auto load_keys_and_values = [&](int step) {
    const std::uint32_t stage = shared + (step % 2) * kStageBytes;
    const int rows = step == 0 ? work.key_rows : kRowsN;
    load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
        stage, static_cast<const T*>(work.last_keys) - step * kRowsN * params.k.row_stride, params.k.row_stride, rows,
        shape.head_dim, params.vector, thread);
    load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
        stage + kValueOffset, static_cast<const T*>(work.last_values) - step * kRowsN * params.v.row_stride,
        params.v.row_stride, rows, shape.head_dim, params.vector, thread);
    ptx::cp_async_commit();
  };

  float o[kM][kD][4];
  clear(o);
  // The maximum in natural units, where exponentials are counted from, and each thread's part of the sum.
  float largest[kM][2], offset[kM][2], sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[m][h] = -INFINITY;
      offset[m][h] = sum[m][h] = 0.0f;
    }
  }
  if (tiles > 0) {
    load_tf32_tile<T, kHeadDim, kRowsM, kThreads>(
        q_tile, row_address<T>(params.q, work.batch, work.head, work.first_query), params.q.row_stride, work.query_rows,
        shape.head_dim, params.vector, thread);
    load_keys_and_values(0);
  }
#pragma unroll 1
  for (int step = 0; step < tiles; ++step) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // this step's K and V are complete, and no warp reads the other stage any more
    if (step + 1 < tiles) load_keys_and_values(step + 1);
    const std::uint32_t stage = shared + (step % 2) * kStageBytes;
    float s[kM][kN][4];
    tf32_product_abt<kSplitScores<T>, false, kTilePitch, kTilePitch, kK>(
        s, q_tile + warp_row * kTilePitch * 4 + tf32_a_lane_offset<kTilePitch>(lane),
        stage + tf32_b_lane_offset<kTilePitch>(lane));
    if (step < work.masked_tiles) {
      const int keys = work.key_rows + step * kRowsN;
      const int diagonal = shape.causal ? work.diagonal + step * kRowsN + warp_row + lane / 4 : keys;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int limit = min(keys, diagonal + m * 16 + h * 8) - (lane % 4) * 2;
#pragma unroll
          for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (n * 8 + e >= limit) s[m][n][2 * h + e] = -INFINITY;
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = largest[m][h];
#pragma unroll
        for (int n = 0; n < kN; ++n) most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        // A row that saw nothing yet counts from 0: its exponentials are e^-inf = 0, where -inf - -inf would be NaN.
        const float from = most == -INFINITY ? 0.0f : most * shape.scale;
        const float rescale = largest[m][h] == -INFINITY ? 0.0f : exp_approx(offset[m][h] - from);
        largest[m][h] = most;
        offset[m][h] = from;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& p = s[m][n][2 * h + e];
            p = exp_approx(fmaf(p, shape.scale, -from));
            added += p;
          }
        }
        sum[m][h] = sum[m][h] * rescale + added;
#pragma unroll
        for (int d = 0; d < kD; ++d) {
          o[m][d][2 * h] *= rescale;
          o[m][d][2 * h + 1] *= rescale;
        }
      }
    }
    tf32_product_ab<kSplit, kTilePitch, kGroup>(
        o, s, stage + kValueOffset + tf32_group_lane_offset<kTilePitch, kGroup>(lane));
  }

  const std::int64_t first_row = (work.batch * shape.num_heads + work.head) * shape.seq_len + work.first_query;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = sum[m][h];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN stays one
      const int row = warp_row + m * 16 + h * 8 + lane / 4;
      if (row >= work.query_rows) continue;
      if (lane % 4 == 0) {
        const float log_sum = logf(total);
        const float lse = total == 0.0f ? -INFINITY : offset[m][h] + log_sum;
        params.lse[first_row + row] = lse;
        if (params.lse_rest != nullptr) {
          params.lse_rest[first_row + row] = total == 0.0f ? 0.0f : (offset[m][h] - lse) + log_sum;
        }
      }
      T* const out = row_address<T>(params.o, work.batch, work.head, work.first_query + row);
      for_columns<kGroup>(o, m, h, lane, [&](int column, float(&x)[kGroup]) {
#pragma unroll
        for (float& value : x) value *= inverse;
        store_columns(out, column, shape.head_dim, params.vector, x);
      });
    }
  }
}

/// Enqueues the forward; `params.schedule` is filled in here but for heads_per_group. Throws DeviceError.
template <class Traits>
void launch_tf32_forward(ForwardParams params, cudaStream_t stream) {
  params.schedule.heads = params.shape.batch * params.shape.num_heads;
  params.schedule.tiles = (params.shape.seq_len + Traits::kRowsM - 1) / Traits::kRowsM;
  params.schedule.tiles_outer = params.shape.causal;
  params.schedule.descending = params.shape.causal;
  launch_in_grids(tf32_forward_kernel<Traits>, params, Traits::kThreads, sizeof(typename Traits::SharedStorage),
                  stream);
}

}  // namespace warpmeter::attention::flash_sm80
