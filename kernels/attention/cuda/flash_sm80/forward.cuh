#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/forward_work.cuh"
#include "kernels/attention/cuda/flash_sm80/launch_grids.cuh"
#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/softmax.cuh"
#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/attention/cuda/flash_sm80/warp_tile.cuh"

/// Forward of attention for 16-bit types on mma.sync (sm_80 and later).
///
///     O = softmax(scale Q K^T + mask) V,  LSE = ln(sum exp(scale S + mask))
///
/// Operands: (batch, heads, rows, head_dim), head_dim contiguous, any 64-bit strides; T is bf16 or fp16, products
/// accumulate in fp32, the softmax is fp32, P is rounded to T. LSE: fp32, dense (batch, num_heads, seq_len).
/// Grid: x = one block a (query tile of kRowsM rows, batch x head), in the order of Schedule; kWarps warps, each with
/// kRowsM / kWarps whole rows, so that the softmax needs no exchange between warps.
/// Loop: key tiles of kRowsN from the last visible one down, two stages of K and V in flight; one barrier a tile.
/// Shared memory: ForwardTraits::SharedStorage. Registers hold O, S and, where kQueriesInRegisters, Q.
/// Limits: head_dim <= kHeadDim; the rest of a row is zero-filled. kVector: rows 16-byte aligned, head_dim % 8 == 0.
/// Source: Dao, "FlashAttention-2", 2023.
namespace warpmeter::attention::flash_sm80 {

template <class T_, int kHeadDim_, int kRowsM_, int kRowsN_, int kWarps_, int kMinBlocks_, bool kQueriesInRegisters_,
          bool kVector_ = true>
struct ForwardTraits {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowsM = kRowsM_;
  static constexpr int kRowsN = kRowsN_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr bool kQueriesInRegisters = kQueriesInRegisters_;
  static constexpr bool kVector = kVector_;
  static constexpr int kStages = 2;

  static constexpr int kTilePitch = kPitch<kHeadDim>;
  static constexpr int kM = kRowsM / kWarps / 16;  // row tiles of a warp
  static constexpr int kN = kRowsN / 8;            // column tiles of S
  static constexpr int kK = kHeadDim / 16;         // k steps of Q K^T
  static constexpr int kD = kHeadDim / 8;          // column tiles of O
  static_assert(kRowsM % (16 * kWarps) == 0 && kRowsN % 16 == 0 && kHeadDim % 16 == 0);
  static_assert(!kQueriesInRegisters || kRowsM <= 2 * kRowsN, "Q is staged where the second stage of K and V will be");

  struct Stage {
    alignas(16) T k[kRowsN * kTilePitch];
    alignas(16) T v[kRowsN * kTilePitch];
  };
  struct SharedStorage {
    Stage stages[kStages];
    ForwardWork work;
    alignas(16) T q[kQueriesInRegisters ? kElementsPerCopy : kRowsM * kTilePitch];
  };
  static_assert(kRowsM <= 2 * kStages * kRowsN, "O leaves through the place of K and V");
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    flash_forward_kernel(const __grid_constant__ ForwardParams params) {
  using T = typename Traits::T;
  constexpr int kHeadDim = Traits::kHeadDim, kRowsM = Traits::kRowsM, kRowsN = Traits::kRowsN;
  constexpr int kTilePitch = Traits::kTilePitch;
  constexpr int kM = Traits::kM, kN = Traits::kN, kK = Traits::kK, kD = Traits::kD;
  constexpr int kThreads = Traits::kThreads;
  using Storage = typename Traits::SharedStorage;
  using QueryCopy = TileCopy<T, kHeadDim, kRowsM, kThreads, Traits::kVector>;
  using KeyCopy = TileCopy<T, kHeadDim, kRowsN, kThreads, Traits::kVector>;

  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const std::uint32_t shared = ptx::shared_address(shared_bytes);
  constexpr std::uint32_t kStageBytes = sizeof(typename Traits::Stage);
  constexpr std::uint32_t kValueOffset = offsetof(typename Traits::Stage, v);
  // Q in registers passes through the second stage, which is not in use yet.
  const std::uint32_t q_tile = shared + (Traits::kQueriesInRegisters ? kStageBytes : offsetof(Storage, q));

  const Shape& shape = params.shape;
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int warp_row = warp * (kM * 16);

  Storage& storage = *reinterpret_cast<Storage*>(shared_bytes);
  ForwardWork& work = storage.work;
  if (thread == 0) work = forward_work<T>(params, kRowsM, kRowsN);
  __syncthreads();  // `work` is written
  const int tiles = work.tiles;

  float o[kM][kD][4];
  clear(o);
  RowSoftmax<kM> softmax(shape.scale_log2);

  if (tiles > 0) {
    const auto stage_of = [&](int step) { return shared + (step % 2) * kStageBytes; };
    // Step 0 is the last key tile: the only one that kv_len may cut off.
    const auto load_keys = [&](int step) {
      const std::int64_t stride = params.k.row_stride;
      KeyCopy::load(stage_of(step), static_cast<const T*>(work.last_keys) - step * kRowsN * stride, stride,
                    step == 0 ? work.key_rows : kRowsN, shape.head_dim, thread);
    };
    const auto load_values = [&](int step) {
      const std::int64_t stride = params.v.row_stride;
      KeyCopy::load(stage_of(step) + kValueOffset, static_cast<const T*>(work.last_values) - step * kRowsN * stride,
                    stride, step == 0 ? work.key_rows : kRowsN, shape.head_dim, thread);
    };
    const std::uint32_t q_lane = q_tile + warp_row * kTilePitch * 2 + a_lane_offset<kTilePitch>(lane);
    const std::uint32_t k_lane = b_lane_offset<kTilePitch>(lane);
    const std::uint32_t v_lane = kValueOffset + b_trans_lane_offset<kTilePitch>(lane);

    // Scores of keys that a row does not see become -inf. Only the first steps, the last tiles, come here.
    float s[kM][kN][4];
    const auto mask = [&](int step) {
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
    };

    QueryCopy::load(q_tile, row_address<T>(params.q, work.batch, work.head, work.first_query), params.q.row_stride,
                    work.query_rows, shape.head_dim, thread);
    load_keys(0);

    load_values(0);
    ptx::cp_async_commit();
    Fragments<kM, kK> q_fragments;
    if constexpr (Traits::kQueriesInRegisters) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // every thread's part of Q has landed
      q_fragments.template load<kTilePitch>(q_lane);
    }
#pragma unroll 1
    for (int step = 0; step < tiles; ++step) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // this step's K and V are complete, and no warp reads the other stage any more
      if (step + 1 < tiles) {
        load_keys(step + 1);
        load_values(step + 1);
        ptx::cp_async_commit();
      }
      const std::uint32_t stage = stage_of(step);
      clear(s);
      if constexpr (Traits::kQueriesInRegisters) {
        product_abt<T, kTilePitch>(s, q_fragments, stage + k_lane);
      } else {
        product_abt<T, kTilePitch, kTilePitch, kK>(s, q_lane, stage + k_lane);
      }
      if (step < work.masked_tiles) mask(step);
      softmax.update_max(s, o);
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        std::uint32_t p[kM][4];
        softmax.template exponentials<T>(s, n, p);
        product_ab_step<T, kTilePitch>(o, p, stage + v_lane + n * 8 * kTilePitch * 2);
      }
    }
  }

  // O / sum and LSE. A row that saw nothing: O = 0, LSE = -inf; a NaN stays one.
  __syncthreads();  // no warp reads K, V or Q any more: O takes their place
  float* const lse = params.lse + (work.batch * shape.num_heads + work.head) * shape.seq_len + work.first_query;
  float inverse_sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = softmax.total(m, h);
      inverse_sum[m][h] = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = warp_row + m * 16 + h * 8 + lane / 4;
      if (lane % 4 == 0 && row < work.query_rows) lse[row] = softmax.lse(m, h, sum, shape.scale);
    }
  }
  store_accumulator<T, kTilePitch>(shared + offsetof(Storage, stages) + warp_row * kTilePitch * 2, o, inverse_sum,
                                   lane);
  __syncthreads();  // the tile of O is complete
  QueryCopy::store(shared + offsetof(Storage, stages),
                   row_address<T>(params.o, work.batch, work.head, work.first_query), params.o.row_stride,
                   work.query_rows, shape.head_dim, thread);
}

/// Enqueues the forward; `params.schedule` is filled in here but for heads_per_group. Throws DeviceError.
template <class Traits>
void launch_forward(ForwardParams params, cudaStream_t stream) {
  params.schedule.heads = params.shape.batch * params.shape.num_heads;
  params.schedule.tiles = (params.shape.seq_len + Traits::kRowsM - 1) / Traits::kRowsM;
  // Causal: the rows with most keys first, so that the last blocks to run are short ones.
  params.schedule.tiles_outer = params.shape.causal;
  params.schedule.descending = params.shape.causal;
  launch_in_grids(flash_forward_kernel<Traits>, params, Traits::kThreads, sizeof(typename Traits::SharedStorage),
                  stream);
}

}  // namespace warpmeter::attention::flash_sm80
