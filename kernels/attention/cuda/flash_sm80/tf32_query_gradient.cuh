#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/forward_work.cuh"
#include "kernels/attention/cuda/flash_sm80/tf32_backward.cuh"

/// dQ = scale dS K by query tiles, P and dS computed again: the first half of the two-pass backward, whose second half
/// is tf32_backward.cuh without dQ. No additions into global memory, hence the same bits on every run.
///
/// Grid and loop as in tf32_forward.cuh; Q and dO stay in shared memory, a warp has 16 rows.
namespace warpmeter::attention::flash_sm80 {

template <class T_, bool kSplit_, int kHeadDim_, int kRowsM_, int kRowsN_, int kMinBlocks_, int kStages_ = 2>
struct Tf32QueryGradientTraits {
  using T = T_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowsM = kRowsM_;
  static constexpr int kRowsN = kRowsN_;
  static constexpr int kThreads = kRowsM / 16 * kWarpSize;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kStages = kStages_;
  static constexpr int kTilePitch = kTf32Pitch<kHeadDim>;
  static constexpr int kN = kRowsN / 8;
  static constexpr int kK = kHeadDim / 8;
  static constexpr int kGroup = kTf32Group<kK, (kK > 16 ? 2 : 4)>;  // dQ takes the registers
  static_assert(kRowsM % 16 == 0 && kRowsN % 16 == 0 && kHeadDim % 16 == 0);

  static constexpr int kUnroll = kHeadDim > 128 ? 1 : 2;

  struct Stage {
    alignas(16) float k[kRowsN * kTilePitch];
    alignas(16) float v[kRowsN * kTilePitch];
  };
  struct SharedStorage {
    Stage stages[kStages];
    alignas(16) float q[kRowsM * kTilePitch];
    alignas(16) float d_o[kRowsM * kTilePitch];
    ForwardWork work;
  };
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    tf32_query_gradient_kernel(const __grid_constant__ BackwardParams params) {
  using T = typename Traits::T;
  constexpr bool kSplit = Traits::kSplit;
  constexpr int kHeadDim = Traits::kHeadDim, kRowsM = Traits::kRowsM, kRowsN = Traits::kRowsN;
  constexpr int kTilePitch = Traits::kTilePitch, kThreads = Traits::kThreads, kN = Traits::kN, kK = Traits::kK;
  constexpr int kGroup = Traits::kGroup;
  using Storage = typename Traits::SharedStorage;

  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const std::uint32_t shared = ptx::shared_address(shared_bytes);
  constexpr std::uint32_t kStageBytes = sizeof(typename Traits::Stage);
  constexpr std::uint32_t kValueOffset = offsetof(typename Traits::Stage, v);
  const Shape& shape = params.shape;
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int warp_row = warp * 16;

  ForwardWork& work = reinterpret_cast<Storage*>(shared_bytes)->work;
  if (thread == 0) work = forward_work<T>(params, kRowsM, kRowsN);
  __syncthreads();  // `work` is written
  const int tiles = work.tiles;

  const auto load_keys_and_values = [&](int step) {
    const std::uint32_t stage = shared + (step % Traits::kStages) * kStageBytes;
    const int rows = step == 0 ? work.key_rows : kRowsN;
    load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
        stage, static_cast<const T*>(work.last_keys) - step * kRowsN * params.k.row_stride, params.k.row_stride, rows,
        shape.head_dim, params.vector, thread);
    load_tf32_tile<T, kHeadDim, kRowsN, kThreads>(
        stage + kValueOffset, static_cast<const T*>(work.last_values) - step * kRowsN * params.v.row_stride,
        params.v.row_stride, rows, shape.head_dim, params.vector, thread);
    ptx::cp_async_commit();
  };

  float dq[1][kK][4];
  clear(dq);
  float lse[2], rest[2], d[2];
  {
    const Tf32RowStats stats = row_stats_of(params);
    const std::int64_t row =
        (work.batch * shape.num_heads + work.head) * stats.padded_rows + work.first_query + warp_row + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      lse[h] = stats.lse[row + h * 8];
      rest[h] = stats.rest[row + h * 8];
      d[h] = stats.d[row + h * 8];
    }
  }
  if (tiles > 0) {
    load_tf32_tile<T, kHeadDim, kRowsM, kThreads>(
        shared + offsetof(Storage, q), row_address<T>(params.q, work.batch, work.head, work.first_query),
        params.q.row_stride, work.query_rows, shape.head_dim, params.vector, thread);
    load_tf32_tile<T, kHeadDim, kRowsM, kThreads>(
        shared + offsetof(Storage, d_o), row_address<T>(params.d_o, work.batch, work.head, work.first_query),
        params.d_o.row_stride, work.query_rows, shape.head_dim, params.vector, thread);
    load_keys_and_values(0);
  }
#pragma unroll 1
  for (int step = 0; step < tiles; ++step) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // this step's K and V are complete, and no warp reads the other stage any more
    if (step + 1 < tiles && Traits::kStages > 1) load_keys_and_values(step + 1);
    const std::uint32_t stage = shared + (step % Traits::kStages) * kStageBytes;
    const std::uint32_t a_lane = shared + warp_row * kTilePitch * 4 + tf32_a_lane_offset<kTilePitch>(lane);
    const std::uint32_t b_lane = stage + tf32_b_lane_offset<kTilePitch>(lane);
    float s[1][kN][4], dp[1][kN][4];
    scores_product_abt<T, false, kTilePitch, kTilePitch, kK, Traits::kUnroll>(s, a_lane + offsetof(Storage, q), b_lane);
    tf32_product_abt<kSplit, false, kTilePitch, kTilePitch, kK, Traits::kUnroll>(dp, a_lane + offsetof(Storage, d_o),
                                                                                 b_lane + kValueOffset);
    const int keys = work.key_rows + step * kRowsN;
    const int diagonal = shape.causal ? work.diagonal + step * kRowsN + warp_row + lane / 4 : keys;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int limit = min(keys, diagonal + h * 8) - (lane % 4) * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = s[0][n][2 * h + e];
          const float p = n * 8 + e < limit ? probability(value, shape.scale, lse[h], rest[h]) : 0.0f;
          value = p * (dp[0][n][2 * h + e] - d[h]);
        }
      }
    }
    tf32_product_ab<kSplit, kTilePitch, kGroup>(dq, s, stage + tf32_group_lane_offset<kTilePitch, kGroup>(lane));
    if (Traits::kStages == 1 && step + 1 < tiles) {
      __syncthreads();  // no warp reads the stage any more
      load_keys_and_values(step + 1);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = warp_row + h * 8 + lane / 4;
    if (row >= work.query_rows) continue;
    T* const out = row_address<T>(params.dq, work.batch, work.head, work.first_query + row);
    for_columns<kGroup>(dq, 0, h, lane, [&](int column, float(&x)[kGroup]) {
#pragma unroll
      for (float& value : x) value *= shape.scale;
      store_columns(out, column, shape.head_dim, params.vector, x);
    });
  }
}

/// Enqueues the two-pass backward; `params.schedule` is filled in here but for heads_per_group. Throws DeviceError.
template <class QueryTraits, class KeyTraits>
void launch_two_pass_backward(BackwardParams params, cudaStream_t stream) {
  static_assert(!KeyTraits::kWithDq && kStatsRows % QueryTraits::kRowsM == 0);
  launch_tf32_prepare<KeyTraits>(params, stream);
  BackwardParams queries = params;
  queries.schedule.heads = params.shape.batch * params.shape.num_heads;
  queries.schedule.tiles = (params.shape.seq_len + QueryTraits::kRowsM - 1) / QueryTraits::kRowsM;
  queries.schedule.tiles_outer = params.shape.causal;
  queries.schedule.descending = params.shape.causal;
  launch_in_grids(tf32_query_gradient_kernel<QueryTraits>, queries, QueryTraits::kThreads,
                  sizeof(typename QueryTraits::SharedStorage), stream);
  launch_tf32_key_blocks<KeyTraits>(params, stream);
}

}  // namespace warpmeter::attention::flash_sm80
