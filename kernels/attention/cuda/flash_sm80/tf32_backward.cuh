#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/backward_work.cuh"
#include "kernels/attention/cuda/flash_sm80/launch_grids.cuh"
#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/score_mask.cuh"
#include "kernels/attention/cuda/flash_sm80/tf32_backward_rows.cuh"
#include "kernels/attention/cuda/flash_sm80/tf32_tile.cuh"
#include "kernels/ptx/reduce.cuh"

/// Backward of attention with tf32 products (see tf32_tile.cuh), by key blocks.
///
///     P = exp(scale Q K^T - LSE),  D = rowsum(O * dO),  dS = P * (dO V^T - D)
///     dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
///
/// Grid: x = one block a (tile of kRowsN keys, batch x key/value head), in the order of Schedule. The block loops over
/// the query heads of its group and, in each, over the query tiles of kRowsM rows that see its keys: dK and dV are sums
/// inside one block. A warp has 16 kM keys and 1 / kColumnWarps of the columns of their dK and dV; S^T = K Q^T and dP^T
/// = V dO^T come out as the A operands of dV and dK. kWithDq (T is float): dS goes through shared memory and all warps
/// add scale dS K to dQ itself, by atomic adds of 8 bytes, in varying order unless params.deterministic (DqTurns).
/// Without, dQ has a kernel of its own (tf32_query_gradient.cuh). Shared memory: Tf32BackwardTraits::SharedStorage.
/// Source: Dao, "FlashAttention-2", 2023.
namespace warpmeter::attention::flash_sm80 {

template <class T_, bool kSplit_, int kHeadDim_, int kRowsM_, int kRowsN_, int kColumnWarps_, int kMinBlocks_,
          bool kWithDq_, int kM_ = 1, int kStages_ = 2>
struct Tf32BackwardTraits {
  using T = T_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowsM = kRowsM_;  // queries a step
  static constexpr int kRowsN = kRowsN_;  // keys of a block
  static constexpr int kColumnWarps = kColumnWarps_;
  static constexpr int kStages = kStages_;
  static constexpr int kM = kM_;  // row tiles (16 keys) of a warp
  static constexpr int kKeyWarps = kRowsN / (16 * kM);
  static constexpr int kWarps = kKeyWarps * kColumnWarps;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr bool kWithDq = kWithDq_;
  static constexpr int kTilePitch = kTf32Pitch<kHeadDim>;
  static constexpr int kScorePitch = kTf32Pitch<kRowsM>;
  static constexpr int kN = kRowsM / 8;                   // column tiles (queries) of S^T
  static constexpr int kK = kHeadDim / 8;                 // k steps of S^T
  static constexpr int kD = kHeadDim / 8 / kColumnWarps;  // column tiles of dK and dV of a warp
  // dK and dV take the registers: how much of a product is under way at once.
  static constexpr int kUnroll = kM * kD > 8 ? 1 : 2;
  static constexpr int kGroup = kTf32Group<kD, (kM * kD > 8 ? 2 : 4)>;
  static constexpr int kDqWarpsM = kRowsM / 16;  // dQ: 16 rows a warp
  static constexpr int kDqWarpsD = kWarps / kDqWarpsM;
  static constexpr int kDqD = kHeadDim / 8 / kDqWarpsD;
  static constexpr int kDqGroup = kTf32Group<kDqD>;
  static_assert(kRowsM % 16 == 0 && kRowsN % (16 * kM) == 0 && kHeadDim % (8 * kColumnWarps) == 0);
  static_assert(!kWithDq || (kWarps % kDqWarpsM == 0 && kHeadDim % (8 * kDqWarpsD) == 0 && sizeof(T) == 4));

  struct Stage {
    alignas(16) float q[kRowsM * kTilePitch];
    alignas(16) float d_o[kRowsM * kTilePitch];
    Tf32Stats<kRowsM> stats;
  };
  struct SharedStorage {
    alignas(16) float k[kRowsN * kTilePitch];
    alignas(16) float v[kRowsN * kTilePitch];
    Stage stages[kStages];
    alignas(16) float ds[kWithDq ? kRowsN * kScorePitch : 4];  // dS^T of a step
    BackwardWork work;
  };
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    tf32_backward_kernel(const __grid_constant__ BackwardParams params) {
  using T = typename Traits::T;
  constexpr bool kSplit = Traits::kSplit, kWithDq = Traits::kWithDq;
  constexpr int kHeadDim = Traits::kHeadDim, kRowsM = Traits::kRowsM, kRowsN = Traits::kRowsN;
  constexpr int kTilePitch = Traits::kTilePitch, kScorePitch = Traits::kScorePitch, kThreads = Traits::kThreads;
  constexpr int kM = Traits::kM, kN = Traits::kN, kK = Traits::kK, kD = Traits::kD;
  constexpr int kGroup = Traits::kGroup, kDqGroup = Traits::kDqGroup;
  using Storage = typename Traits::SharedStorage;
  using Stage = typename Traits::Stage;

  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Storage& storage = *reinterpret_cast<Storage*>(shared_bytes);
  const std::uint32_t shared = ptx::shared_address(shared_bytes);
  const Shape& shape = params.shape;
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int warp_key = warp % Traits::kKeyWarps * (16 * kM);
  const int warp_column = warp / Traits::kKeyWarps * (kD * 8);

  BackwardWork& work = storage.work;
  if (thread == 0) work = backward_work(params, kRowsM, kRowsN);
  __syncthreads();  // `work` is written

  const auto stage_of = [&](const QueryStep& step) {
    return shared + static_cast<std::uint32_t>(offsetof(Storage, stages)) +
           (step.index % Traits::kStages) * static_cast<std::uint32_t>(sizeof(Stage));
  };
  const auto load_step = [&](const QueryStep& step) {
    const std::int64_t first_query = static_cast<std::int64_t>(step.tile) * kRowsM;
    const std::int64_t head = work.first_head + step.head;
    const int rows = at_most(shape.seq_len - first_query, kRowsM);
    const std::uint32_t stage = stage_of(step);
    load_tf32_tile<T, kHeadDim, kRowsM, kThreads>(stage + offsetof(Stage, q),
                                                  row_address<T>(params.q, work.batch, head, first_query),
                                                  params.q.row_stride, rows, shape.head_dim, params.vector, thread);
    load_tf32_tile<T, kHeadDim, kRowsM, kThreads>(stage + offsetof(Stage, d_o),
                                                  row_address<T>(params.d_o, work.batch, head, first_query),
                                                  params.d_o.row_stride, rows, shape.head_dim, params.vector, thread);
    load_tf32_stats<kRowsM>(stage + offsetof(Stage, stats), row_stats_of(params), work.batch * shape.num_heads + head,
                            first_query, thread);
    ptx::cp_async_commit();
  };

  load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
      shared + offsetof(Storage, k), row_address<T>(params.k, work.batch, work.kv_head, work.first_key),
      params.k.row_stride, work.key_rows, shape.head_dim, params.vector, thread);
  load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
      shared + offsetof(Storage, v), row_address<T>(params.v, work.batch, work.kv_head, work.first_key),
      params.v.row_stride, work.key_rows, shape.head_dim, params.vector, thread);
  QueryStep step = first_step(work);
  load_step(step);

  float dk[kM][kD][4], dv[kM][kD][4];
  clear(dk);
  clear(dv);

  // dQ of a step's rows: dS of all of the block's keys times K.
  const auto accumulate_dq = [&](const QueryStep& at) {
    float dq[1][Traits::kDqD][4];
    const int row = warp % Traits::kDqWarpsM * 16;
    const int column = warp / Traits::kDqWarpsM * (Traits::kDqD * 8);
    tf32_product_atb<kSplit, kScorePitch, kTilePitch, kRowsN / 8, kDqGroup>(
        dq, shared + offsetof(Storage, ds) + row * 4 + tf32_rows_lane_offset<kScorePitch>(lane),
        shared + offsetof(Storage, k) + column * 4 + tf32_group_lane_offset<kTilePitch, kDqGroup>(lane));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t query = static_cast<std::int64_t>(at.tile) * kRowsM + row + h * 8 + lane / 4;
      if (query >= shape.seq_len) continue;
      float* const out = row_address<float>(params.dq, work.batch, work.first_head + at.head, query);
      for_columns<kDqGroup>(dq, 0, h, lane, [&](int at_column, const float(&x)[kDqGroup]) {
        const int c = column + at_column;
        if (params.vector) {
          if (c >= shape.head_dim) return;
          if constexpr (kDqGroup == 4) {
            ptx::reduce_add_v4(out + c, x[0] * shape.scale, x[1] * shape.scale, x[2] * shape.scale, x[3] * shape.scale);
          } else if constexpr (kDqGroup == 2) {
            ptx::reduce_add_v2(out + c, x[0] * shape.scale, x[1] * shape.scale);
          } else {
            ptx::reduce_add(out + c, x[0] * shape.scale);
          }
        } else {
#pragma unroll
          for (int n = 0; n < kDqGroup; ++n) {
            if (c + n < shape.head_dim) ptx::reduce_add(out + c + n, x[n] * shape.scale);
          }
        }
      });
    }
  };

  const DqTurns turns{params.turns, kWithDq && params.deterministic && thread == 0};
  QueryStep last = step;
#pragma unroll 1
  for (;;) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // Q, dO and the stats of this step are complete; the other stage and dS are read
    if (step.index > 0) turns.pass_on(shape, work, last);
    const QueryStep next = next_step(work, step);
    const bool more = !finished(work, next);
    if (more && Traits::kStages > 1) load_step(next);
    const std::uint32_t stage = stage_of(step);
    const std::uint32_t stats = stage + offsetof(Stage, stats) + (lane % 4) * 2 * sizeof(float);

    float p[kM][kN][4];
    scores_product_abt<T, true, kTilePitch, kTilePitch, kK, Traits::kUnroll>(
        p, shared + offsetof(Storage, k) + warp_key * kTilePitch * 4 + tf32_a_lane_offset<kTilePitch>(lane),
        stage + offsetof(Stage, q) + tf32_b_lane_offset<kTilePitch>(lane));
    mask_scores(p, diagonal_of(shape, work, step, kRowsM, kRowsN), work.key_rows, kRowsN, warp_key, lane);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float2 lse = ptx::load_shared_float2(stats + offsetof(Tf32Stats<kRowsM>, lse) + n * 8 * 4);
      const float2 rest = ptx::load_shared_float2(stats + offsetof(Tf32Stats<kRowsM>, rest) + n * 8 * 4);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          p[m][n][2 * h] = probability(p[m][n][2 * h], shape.scale, lse.x, rest.x);
          p[m][n][2 * h + 1] = probability(p[m][n][2 * h + 1], shape.scale, lse.y, rest.y);
        }
      }
    }
    tf32_product_ab<kSplit, kTilePitch, kGroup>(
        dv, p, stage + offsetof(Stage, d_o) + warp_column * 4 + tf32_group_lane_offset<kTilePitch, kGroup>(lane));
    {
      float dp[kM][kN][4];
      tf32_product_abt<kSplit, true, kTilePitch, kTilePitch, kK, Traits::kUnroll>(
          dp, shared + offsetof(Storage, v) + warp_key * kTilePitch * 4 + tf32_a_lane_offset<kTilePitch>(lane),
          stage + offsetof(Stage, d_o) + tf32_b_lane_offset<kTilePitch>(lane));
      const std::uint32_t ds_lane =
          shared + offsetof(Storage, ds) + ((warp_key + lane / 4) * kScorePitch + (lane % 4) * 2) * 4;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 d = ptx::load_shared_float2(stats + offsetof(Tf32Stats<kRowsM>, d) + n * 8 * 4);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            p[m][n][2 * h] *= dp[m][n][2 * h] - d.x;
            p[m][n][2 * h + 1] *= dp[m][n][2 * h + 1] - d.y;
            if (kWithDq && warp < Traits::kKeyWarps) {
              ptx::store_shared_float2(ds_lane + ((m * 16 + h * 8) * kScorePitch + n * 8) * 4, p[m][n][2 * h],
                                       p[m][n][2 * h + 1]);
            }
          }
        }
      }
    }
    tf32_product_ab<kSplit, kTilePitch, kGroup>(
        dk, p, stage + offsetof(Stage, q) + warp_column * 4 + tf32_group_lane_offset<kTilePitch, kGroup>(lane));
    if constexpr (kWithDq) {
      turns.wait(shape, work, step, kRowsM, kRowsN);
      __syncthreads();  // dS is complete
      accumulate_dq(step);
    }
    last = step;
    if (!more) break;
    if constexpr (Traits::kStages == 1) {
      __syncthreads();  // no warp reads the stage any more
      load_step(next);
    }
    step = next;
  }
  if constexpr (kWithDq) {
    __syncthreads();  // the last additions to dQ are issued
    turns.pass_on(shape, work, last);
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = warp_key + m * 16 + h * 8 + lane / 4;
      if (key >= work.key_rows) continue;
      T* const dk_row = row_address<T>(params.dk, work.batch, work.kv_head, work.first_key + key);
      T* const dv_row = row_address<T>(params.dv, work.batch, work.kv_head, work.first_key + key);
      for_columns<kGroup>(dk, m, h, lane, [&](int column, float(&x)[kGroup]) {
#pragma unroll
        for (float& value : x) value *= shape.scale;
        store_columns(dk_row, warp_column + column, shape.head_dim, params.vector, x);
      });
      for_columns<kGroup>(dv, m, h, lane, [&](int column, const float(&x)[kGroup]) {
        store_columns(dv_row, warp_column + column, shape.head_dim, params.vector, x);
      });
    }
  }
}

/// Bytes of params.row_stats of every tf32 backward; 0 for what it does not use.
template <class Traits>
BackwardWorkspace tf32_backward_workspace(const Shape& shape, bool deterministic) {
  const std::int64_t heads = shape.batch * shape.num_heads;
  BackwardWorkspace workspace;
  workspace.row_stats = heads * padded_stats_rows(shape) * 3 * static_cast<std::int64_t>(sizeof(float));
  if (Traits::kWithDq && deterministic) {
    workspace.turns =
        heads * ((shape.seq_len + Traits::kRowsM - 1) / Traits::kRowsM) * static_cast<std::int64_t>(sizeof(int));
  }
  return workspace;
}

/// The statistics of the query rows; with Traits::kWithDq a cleared dQ.
template <class Traits>
void launch_tf32_prepare(BackwardParams params, cudaStream_t stream) {
  params.schedule = Schedule{};
  params.schedule.heads = params.shape.batch * params.shape.num_heads;
  params.schedule.tiles = (params.shape.seq_len + kStatsRows - 1) / kStatsRows;
  launch_in_grids(tf32_prepare_kernel<typename Traits::T, Traits::kSplit, Traits::kWithDq>, params, kStatsThreads, 0,
                  stream);
}

template <class Traits>
void launch_tf32_key_blocks(BackwardParams params, cudaStream_t stream) {
  params.schedule.heads = params.shape.batch * params.shape.num_kv_heads;
  params.schedule.tiles = (params.shape.kv_len + Traits::kRowsN - 1) / Traits::kRowsN;
  // As in backward.cuh.
  params.schedule.tiles_outer = params.shape.causal;
  params.schedule.descending = params.shape.causal && params.deterministic && Traits::kWithDq;
  launch_in_grids(tf32_backward_kernel<Traits>, params, Traits::kThreads, sizeof(typename Traits::SharedStorage),
                  stream);
}

/// Enqueues the backward; `params.schedule` is filled in here but for heads_per_group. Throws DeviceError.
template <class Traits>
void launch_tf32_backward(BackwardParams params, cudaStream_t stream) {
  static_assert(Traits::kWithDq);
  if (params.deterministic) {
    const BackwardWorkspace bytes = tf32_backward_workspace<Traits>(params.shape, true);
    check_cuda(cudaMemsetAsync(params.turns, 0, static_cast<std::size_t>(bytes.turns), stream), "cudaMemsetAsync");
  }
  launch_tf32_prepare<Traits>(params, stream);
  launch_tf32_key_blocks<Traits>(params, stream);
}

}  // namespace warpmeter::attention::flash_sm80
