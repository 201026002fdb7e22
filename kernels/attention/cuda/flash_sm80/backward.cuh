#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/backward_rows.cuh"
#include "kernels/attention/cuda/flash_sm80/backward_work.cuh"
#include "kernels/attention/cuda/flash_sm80/launch_grids.cuh"
#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/score_mask.cuh"
#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/attention/cuda/flash_sm80/warp_tile.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/reduce.cuh"

/// Backward of attention for 16-bit types on mma.sync (sm_80 and later), by key blocks.
///
///     P = exp(scale Q K^T - LSE),  D = rowsum(O * dO),  dS = P * (dO V^T - D)
///     dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
///
/// Operands as in forward.cuh. P and dS are rounded to T for the products, everything accumulates in fp32.
/// Three launches: backward_rows.cuh's prepare (LSE in powers of two, D, a cleared dQ accumulator), this kernel, and
/// backward_rows.cuh's finish (dQ to T).
/// Grid: x = one block a (tile of kRowsN keys, batch x key/value head), in the order of Schedule. The block loops over
/// the query heads of its group and, in each, over the query tiles of kRowsM rows that see its keys. dK and dV are
/// therefore sums inside one block: no atomics, whatever the group.
/// Warps work in pairs on kKeysPerWarp keys. With S^T = K Q^T and dP^T = V dO^T (keys by rows), P^T and dS^T come out
/// of the accumulators as the A operands of dV and dK:
///     first of the pair:   S^T -> P^T -> (P^T to the partner, rounded) -> dV += P^T dO
///     second of the pair:  dP^T -> dS^T = P^T * (dP^T - D) -> (dS^T to shared memory) -> dK += dS^T Q
/// Both hold one accumulator of kKeysPerWarp x kHeadDim: dK and dV together would not fit one warp's registers, and
/// while one of a pair is in the exponentials the other one feeds the tensor cores of the same scheduler.
/// All warps share dQ += dS K, one step late, so that a step needs a single block barrier.
/// dQ goes to an fp32 accumulator in global memory by atomic adds, in the layout of dq_fragment(). Their order varies
/// unless params.deterministic: then key blocks take turns on each query tile (DqTurns), in a fixed order and one that
/// costs little waiting.
/// Shared memory: BackwardTraits::SharedStorage. Limits: head_dim <= kHeadDim; kVector as in forward.cuh.
/// Source: Dao, "FlashAttention-2", 2023 (the loop); Shah et al., "FlashAttention-3", 2024 (swapped products).
namespace warpmeter::attention::flash_sm80 {

template <class T_, int kHeadDim_, int kRowsM_, int kKeysPerWarp_, int kPairs_, int kMinBlocks_, int kDqWarpsM_,
          bool kVector_ = true, bool kJoint_ = false>
struct BackwardTraits {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowsM = kRowsM_;  // queries a step
  static constexpr int kKeysPerWarp = kKeysPerWarp_;
  static constexpr int kPairs = kPairs_;
  static constexpr int kRowsN = kKeysPerWarp * kPairs;  // keys of a block
  static constexpr bool kJoint = kJoint_;
  static constexpr int kWarps = kJoint ? kPairs : 2 * kPairs;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr bool kVector = kVector_;
  static constexpr int kStages = 2;

  static constexpr int kTilePitch = kPitch<kHeadDim>;
  static constexpr int kScorePitch = kRowsM + kPadElements;
  static constexpr int kM = kKeysPerWarp / 16;  // row tiles (keys) of a warp
  static constexpr int kN = kRowsM / 8;         // column tiles (queries) of S^T
  static constexpr int kK = kHeadDim / 16;      // k steps of S^T
  static constexpr int kD = kHeadDim / 8;       // column tiles of dK and dV
  static_assert(kKeysPerWarp % 16 == 0 && kRowsM % 16 == 0 && kHeadDim % 16 == 0);

  // dQ: kRowsM x kHeadDim over all warps.
  static constexpr int kDqWarpsM = kDqWarpsM_;
  static constexpr int kDqWarpsD = kWarps / kDqWarpsM;
  static constexpr int kDqM = kRowsM / kDqWarpsM / 16;
  static constexpr int kDqD = kHeadDim / kDqWarpsD / 8;
  static constexpr int kDqFragments = kDqM * kDqD;  // of four floats, a thread
  static_assert(kWarps % kDqWarpsM == 0 && kRowsM % (16 * kDqWarpsM) == 0 && kHeadDim % (16 * kDqWarpsD) == 0);

  struct Stage {
    alignas(16) T q[kRowsM * kTilePitch];
    alignas(16) T d_o[kRowsM * kTilePitch];
    alignas(16) RowStats<kRowsM> stats;
  };
  struct SharedStorage {
    alignas(16) T k[kRowsN * kTilePitch];
    alignas(16) T v[kRowsN * kTilePitch];
    Stage stages[kStages];
    alignas(16) T ds[2][kRowsN * kScorePitch];                          // dS^T of this step and of the last
    alignas(16) uint4 p[kPairs][kJoint ? 1 : kM * kN / 2 * kWarpSize];  // P^T as A fragments, from warp to warp
    BackwardWork work;
  };
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    flash_backward_kernel(const __grid_constant__ BackwardParams params) {
  using T = typename Traits::T;
  constexpr int kHeadDim = Traits::kHeadDim, kRowsM = Traits::kRowsM, kRowsN = Traits::kRowsN;
  constexpr int kTilePitch = Traits::kTilePitch, kScorePitch = Traits::kScorePitch;
  constexpr int kM = Traits::kM, kN = Traits::kN, kK = Traits::kK, kD = Traits::kD;
  constexpr int kThreads = Traits::kThreads;
  using Storage = typename Traits::SharedStorage;
  using Stage = typename Traits::Stage;
  using QueryCopy = TileCopy<T, kHeadDim, kRowsM, kThreads, Traits::kVector>;
  using KeyCopy = TileCopy<T, kHeadDim, kRowsN, kThreads, Traits::kVector>;

  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Storage& storage = *reinterpret_cast<Storage*>(shared_bytes);
  const std::uint32_t shared = ptx::shared_address(shared_bytes);
  const Shape& shape = params.shape;
  const int thread = threadIdx.x, warp = thread / kWarpSize, lane = thread % kWarpSize;
  // Warps w and w + kPairs are a pair: with four pairs they share a scheduler.
  const int pair = warp % Traits::kPairs;
  const bool does_values = warp < Traits::kPairs;
  const int warp_key = pair * Traits::kKeysPerWarp;

  BackwardWork& work = storage.work;
  if (thread == 0) work = backward_work(params, kRowsM, kRowsN);
  __syncthreads();  // `work` is written

  const auto stage_of = [&](int step) {
    return shared + offsetof(Storage, stages) + (step % 2) * static_cast<std::uint32_t>(sizeof(Stage));
  };
  const auto load_step = [&](const QueryStep& step) {
    const std::int64_t first_query = static_cast<std::int64_t>(step.tile) * kRowsM;
    const std::int64_t head = work.first_head + step.head;
    const int rows = at_most(shape.seq_len - first_query, kRowsM);
    const std::uint32_t stage = stage_of(step.index);
    QueryCopy::load(stage + offsetof(Stage, q), row_address<T>(params.q, work.batch, head, first_query),
                    params.q.row_stride, rows, shape.head_dim, thread);
    QueryCopy::load(stage + offsetof(Stage, d_o), row_address<T>(params.d_o, work.batch, head, first_query),
                    params.d_o.row_stride, rows, shape.head_dim, thread);
    constexpr int kCopies = sizeof(RowStats<kRowsM>) / 16;
    static_assert(kCopies <= kThreads);
    if (thread < kCopies) {
      const auto* stats = reinterpret_cast<const RowStats<kRowsM>*>(params.row_stats) +
                          (work.batch * shape.num_heads + head) * work.query_tiles + step.tile;
      ptx::cp_async_16(stage + offsetof(Stage, stats) + thread * 16,
                       reinterpret_cast<const unsigned char*>(stats) + thread * 16, 16);
    }
    ptx::cp_async_commit();
  };

  {
    const std::int64_t kv_head = work.kv_head;
    KeyCopy::load(shared + offsetof(Storage, k), row_address<T>(params.k, work.batch, kv_head, work.first_key),
                  params.k.row_stride, work.key_rows, shape.head_dim, thread);
    KeyCopy::load(shared + offsetof(Storage, v), row_address<T>(params.v, work.batch, kv_head, work.first_key),
                  params.v.row_stride, work.key_rows, shape.head_dim, thread);
  }
  QueryStep step = first_step(work);
  load_step(step);

  // dK or dV of this warp's keys.
  float acc[kM][kD][4];
  clear(acc);
  float acc_k[Traits::kJoint ? kM : 1][Traits::kJoint ? kD : 1][4];  // dK where acc is dV
  clear(acc_k);

  // dQ of the step before: dS of that step (all of the block's keys) times K.
  const auto accumulate_dq = [&](const QueryStep& last) {
    float dq[Traits::kDqM][Traits::kDqD][4];
    clear(dq);
    const int row = warp % Traits::kDqWarpsM * (Traits::kDqM * 16);
    const int column = warp / Traits::kDqWarpsM * (Traits::kDqD * 8);
    product_atb<T, kScorePitch, kTilePitch, kRowsN / 16>(
        dq,
        shared + offsetof(Storage, ds) + (last.index % 2) * static_cast<std::uint32_t>(sizeof(storage.ds[0])) +
            row * 2 + a_trans_lane_offset<kScorePitch>(lane),
        shared + offsetof(Storage, k) + column * 2 + b_trans_lane_offset<kTilePitch>(lane));
    float4* const out = dq_fragment<Traits>(params.dq_accumulator, query_tile_index(shape, work, last), thread);
#pragma unroll
    for (int m = 0; m < Traits::kDqM; ++m) {
#pragma unroll
      for (int n = 0; n < Traits::kDqD; ++n) {
        ptx::reduce_add_v4(reinterpret_cast<float*>(out + (m * Traits::kDqD + n) * kThreads), dq[m][n][0], dq[m][n][1],
                           dq[m][n][2], dq[m][n][3]);
      }
    }
  };

  const DqTurns turns{params.turns, params.deterministic && thread == 0};
  QueryStep last = step, before_last = step;
#pragma unroll 1
  for (;;) {
    ptx::cp_async_wait<0>();
    if (step.index > 0) turns.wait(shape, work, last, kRowsM, kRowsN);
    __syncthreads();  // Q, dO and the stats of this step and dS of the last are complete; the other stage is read
    if (step.index > 1) turns.pass_on(shape, work, before_last);
    const QueryStep next = next_step(work, step);
    const bool more = !finished(work, next);
    if (more) load_step(next);
    const std::uint32_t stage = stage_of(step.index);
    const std::uint32_t stats = stage + offsetof(Stage, stats) + (lane % 4) * 2 * sizeof(float);
    const std::uint32_t p_exchange =
        shared + offsetof(Storage, p) + pair * static_cast<std::uint32_t>(sizeof(storage.p[0])) + lane * sizeof(uint4);

    if constexpr (Traits::kJoint) {
      constexpr int kColumns = 4;  // 32 queries at a time
#pragma unroll
      for (int c = 0; c < kN / kColumns; ++c) {
        const std::uint32_t rows = c * kColumns * 8 * kTilePitch * 2;
        std::uint32_t p[kColumns / 2][kM][4];
        {
          float s[kM][kColumns][4];
          clear(s);
          product_abt<T, kTilePitch, kTilePitch, kK>(
              s, shared + offsetof(Storage, k) + warp_key * kTilePitch * 2 + a_lane_offset<kTilePitch>(lane),
              stage + offsetof(Stage, q) + rows + b_lane_offset<kTilePitch>(lane));
          mask_scores(s, diagonal_of(shape, work, step, kRowsM, kRowsN) + c * kColumns * 8, work.key_rows, kRowsN,
                      warp_key, lane);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            const float2 lse =
                ptx::load_shared_float2(stats + offsetof(RowStats<kRowsM>, lse_log2) + (c * kColumns + n) * 8 * 4);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                p[n / 2][m][2 * (n % 2) + h] =
                    ptx::pack2<T>(ptx::exp2_approx(fmaf(s[m][n][2 * h], shape.scale_log2, -lse.x)),
                                  ptx::exp2_approx(fmaf(s[m][n][2 * h + 1], shape.scale_log2, -lse.y)));
              }
            }
          }
        }
        float dp[kM][kColumns][4];
        clear(dp);
        product_abt<T, kTilePitch, kTilePitch, kK>(
            dp, shared + offsetof(Storage, v) + warp_key * kTilePitch * 2 + a_lane_offset<kTilePitch>(lane),
            stage + offsetof(Stage, d_o) + rows + b_lane_offset<kTilePitch>(lane));
        product_ab<T, kTilePitch>(acc, p, stage + offsetof(Stage, d_o) + rows + b_trans_lane_offset<kTilePitch>(lane));
        const std::uint32_t ds_lane = shared + offsetof(Storage, ds) +
                                      (step.index % 2) * static_cast<std::uint32_t>(sizeof(storage.ds[0])) +
                                      ((warp_key + lane / 4) * kScorePitch + (lane % 4) * 2 + c * kColumns * 8) * 2;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const float2 d = ptx::load_shared_float2(stats + offsetof(RowStats<kRowsM>, d) + (c * kColumns + n) * 8 * 4);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              std::uint32_t& packed = p[n / 2][m][2 * (n % 2) + h];
              const float2 weight = ptx::unpack2<T>(packed);
              packed = ptx::pack2<T>(weight.x * (dp[m][n][2 * h] - d.x), weight.y * (dp[m][n][2 * h + 1] - d.y));
              ptx::store_shared_u32(ds_lane + ((m * 16 + h * 8) * kScorePitch + n * 8) * 2, packed);
            }
          }
        }
        product_ab<T, kTilePitch>(acc_k, p, stage + offsetof(Stage, q) + rows + b_trans_lane_offset<kTilePitch>(lane));
      }
      if (step.index > 0) accumulate_dq(last);
    } else if (does_values) {
      float s[kM][kN][4];
      clear(s);
      product_abt<T, kTilePitch, kTilePitch, kK>(
          s, shared + offsetof(Storage, k) + warp_key * kTilePitch * 2 + a_lane_offset<kTilePitch>(lane),
          stage + offsetof(Stage, q) + b_lane_offset<kTilePitch>(lane));

      std::uint32_t p[kN / 2][kM][4];
      mask_scores(s, diagonal_of(shape, work, step, kRowsM, kRowsN), work.key_rows, kRowsN, warp_key, lane);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 lse = ptx::load_shared_float2(stats + offsetof(RowStats<kRowsM>, lse_log2) + n * 8 * 4);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            p[n / 2][m][2 * (n % 2) + h] =
                ptx::pack2<T>(ptx::exp2_approx(fmaf(s[m][n][2 * h], shape.scale_log2, -lse.x)),
                              ptx::exp2_approx(fmaf(s[m][n][2 * h + 1], shape.scale_log2, -lse.y)));
          }
        }
        if (n % 2 == 1) {
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            const auto& f = p[n / 2][m];
            ptx::store_shared_v4(p_exchange + (n / 2 * kM + m) * kWarpSize * 16, f[0], f[1], f[2], f[3]);
          }
        }
      }
      ptx::named_barrier_arrive(1 + pair, 2 * kWarpSize);  // P^T is there for the partner
      product_ab<T, kTilePitch>(acc, p, stage + offsetof(Stage, d_o) + b_trans_lane_offset<kTilePitch>(lane));
      if (step.index > 0) accumulate_dq(last);
    } else {
      if (step.index > 0) accumulate_dq(last);
      float dp[kM][kN][4];
      clear(dp);
      product_abt<T, kTilePitch, kTilePitch, kK>(
          dp, shared + offsetof(Storage, v) + warp_key * kTilePitch * 2 + a_lane_offset<kTilePitch>(lane),
          stage + offsetof(Stage, d_o) + b_lane_offset<kTilePitch>(lane));

      const std::uint32_t ds_lane = shared + offsetof(Storage, ds) +
                                    (step.index % 2) * static_cast<std::uint32_t>(sizeof(storage.ds[0])) +
                                    ((warp_key + lane / 4) * kScorePitch + (lane % 4) * 2) * 2;
      std::uint32_t ds[kN / 2][kM][4];
      ptx::named_barrier_sync(1 + pair, 2 * kWarpSize);  // the partner has stored P^T
#pragma unroll
      for (int k = 0; k < kN / 2; ++k) {
        float2 d[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          d[c] = ptx::load_shared_float2(stats + offsetof(RowStats<kRowsM>, d) + (2 * k + c) * 8 * 4);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          std::uint32_t p[4];
          ptx::load_shared_v4(p_exchange + (k * kM + m) * kWarpSize * 16, p[0], p[1], p[2], p[3]);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float2 weight = ptx::unpack2<T>(p[2 * c + h]);
              const float* g = &dp[m][2 * k + c][2 * h];
              const std::uint32_t packed = ptx::pack2<T>(weight.x * (g[0] - d[c].x), weight.y * (g[1] - d[c].y));
              ds[k][m][2 * c + h] = packed;
              ptx::store_shared_u32(ds_lane + ((m * 16 + h * 8) * kScorePitch + (2 * k + c) * 8) * 2, packed);
            }
          }
        }
      }
      product_ab<T, kTilePitch>(acc, ds, stage + offsetof(Stage, q) + b_trans_lane_offset<kTilePitch>(lane));
    }
    before_last = last;
    last = step;
    if (!more) break;
    step = next;
  }
  turns.wait(shape, work, last, kRowsM, kRowsN);
  __syncthreads();  // dS of the last step is complete
  if (last.index > 0) turns.pass_on(shape, work, before_last);
  accumulate_dq(last);
  __syncthreads();  // the last additions to dQ are issued; nothing reads K or V any more
  turns.pass_on(shape, work, last);

  // dV takes V's place, dK K's: rows of this warp alone until the barrier.
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = does_values ? 1.0f : shape.scale;
  const std::uint32_t tile = shared + (does_values ? offsetof(Storage, v) : offsetof(Storage, k));
  store_accumulator<T, kTilePitch>(tile + warp_key * kTilePitch * 2, acc, factor, lane);
  if constexpr (Traits::kJoint) {
#pragma unroll
    for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = shape.scale;
    store_accumulator<T, kTilePitch>(shared + offsetof(Storage, k) + warp_key * kTilePitch * 2, acc_k, factor, lane);
  }
  __syncthreads();  // the tiles of dK and dV are complete
  const std::int64_t kv_head = work.kv_head;
  KeyCopy::store(shared + offsetof(Storage, k), row_address<T>(params.dk, work.batch, kv_head, work.first_key),
                 params.dk.row_stride, work.key_rows, shape.head_dim, thread);
  KeyCopy::store(shared + offsetof(Storage, v), row_address<T>(params.dv, work.batch, kv_head, work.first_key),
                 params.dv.row_stride, work.key_rows, shape.head_dim, thread);
}

/// What the launcher below needs beside the operands.
template <class Traits>
BackwardWorkspace backward_workspace(const Shape& shape, bool deterministic) {
  const std::int64_t tiles = shape.batch * shape.num_heads * ((shape.seq_len + Traits::kRowsM - 1) / Traits::kRowsM);
  BackwardWorkspace workspace;
  workspace.row_stats = tiles * static_cast<std::int64_t>(sizeof(RowStats<Traits::kRowsM>));
  workspace.dq_accumulator =
      tiles * Traits::kDqFragments * Traits::kThreads * static_cast<std::int64_t>(sizeof(float4));
  workspace.turns = deterministic ? tiles * static_cast<std::int64_t>(sizeof(int)) : 0;
  return workspace;
}

/// Enqueues the backward's three launches; `params.schedule` is filled in here but for heads_per_group.
template <class Traits>
void launch_backward(BackwardParams params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  BackwardParams rows = params;
  // Member by member: of designated initializers in a template nvcc 13 makes positional ones for the host compiler.
  rows.schedule = Schedule{};
  rows.schedule.heads = shape.batch * shape.num_heads;
  rows.schedule.tiles = (shape.seq_len + Traits::kRowsM - 1) / Traits::kRowsM;
  launch_in_grids(backward_prepare_kernel<Traits>, rows, kPrepareThreads, 0, stream);

  params.schedule.heads = shape.batch * shape.num_kv_heads;
  params.schedule.tiles = (shape.kv_len + Traits::kRowsN - 1) / Traits::kRowsN;
  // Causal: the first keys are seen by most queries. In turns, blocks go from the last key block down (see DqTurns).
  params.schedule.tiles_outer = shape.causal;
  params.schedule.descending = shape.causal && params.deterministic;
  launch_in_grids(flash_backward_kernel<Traits>, params, Traits::kThreads, sizeof(typename Traits::SharedStorage),
                  stream);
  launch_in_grids(backward_finish_kernel<Traits>, rows, Traits::kThreads, 0, stream);
}

}  // namespace warpmeter::attention::flash_sm80
