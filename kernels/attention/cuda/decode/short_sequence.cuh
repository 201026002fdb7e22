// Flash decoding of short sequences on tensor cores, where neither memory nor arithmetic bounds it, but how many
// instructions a warp has one after the other: tensor_core.cuh without its generality.
//
// A row of up to 8 query heads has a cluster of 8 blocks with 8 warps each; a warp has at most kGroups groups of 16
// keys. All are copied at once, keys and queries before values, and none is waited for before all are asked for. No
// maximum changes afterwards, so that nothing is scaled. Every warp sends its share of the sums to the block that joins
// those columns, into its shared memory, which counts what has come: one join for warps and parts, without a barrier or
// a fence, and nobody stays for others' reading.
//
// Grid: (part, key/value head, sequence).

#pragma once

#include "kernels/attention/cuda/decode/part_weights.cuh"
#include "kernels/attention/cuda/decode/swizzle.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {

template <int kD, int kGroups>
struct ShortConfig {
  static constexpr int kThreads = kShortWarps * 32;
  static constexpr int kChunks = kD / 8;                       // of 16 bytes a row
  static constexpr int kTileBytes = kWarpKeys * kD * 2;        // of K or V
  static constexpr int kQueriesAt = kGroups * 2 * kTileBytes;  // in a warp's own memory: keys, values, queries
  static constexpr int kWarpBytes = kQueriesAt + kMostShortRows * kD * 2;
  static constexpr int kPartials = kShortParts * kShortWarps;  // of a row
  static constexpr int kColumns = kD / kShortParts;            // that a block joins
  static constexpr int kRowFloats = kPartials * kColumns + 8;  // rows meet different banks
  static constexpr int kSumBytes = kMostShortRows * kRowFloats * 4;
  // After the warps' tiles:
  static constexpr int kSumsAt = kShortWarps * kWarpBytes;
  static constexpr int kWeightsAt = kSumsAt + kSumBytes;
  static constexpr int kBarrierAt = kWeightsAt + kMostShortRows * kPartials * 8;
  static constexpr int kSharedBytes = kBarrierAt + 8;
  /// What comes to a block for each row.
  static constexpr int kRowBytes = kPartials * (kColumns * 4 + 8);
};

template <class T, int kD, int kGroups>
__global__ void __launch_bounds__(ShortConfig<kD, kGroups>::kThreads, 1) decode_short_kernel(const Params p) {
#if __CUDA_ARCH__ >= 900
  using C = ShortConfig<kD, kGroups>;
  extern __shared__ __align__(128) unsigned char shared[];
  const std::uint32_t base = ptx::shared_address(shared);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int part = blockIdx.x;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;

  // Neighbouring blocks of keys, the first parts one more (Stream).
  const int more = p.uniform_blocks - p.uniform_share * kShortParts;
  const int first = (part * p.uniform_share + min(part, more)) * p.block;
  const int end = min(first + (p.uniform_share + (part < more ? 1 : 0)) * p.block, p.uniform_length);
  const int warp_key = first + warp * kWarpKeys;
  constexpr int kGroupStep = kShortWarps * kWarpKeys;

  constexpr int kRowsACopy = 32 / C::kChunks;
  const int copy_row = lane / C::kChunks;
  const int copy_chunk = lane % C::kChunks;
  // Of each group, the lane's first element: a group lies in one page.
  std::int64_t from[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int key0 = warp_key + g * kGroupStep;
    const std::int64_t page = key0 < end ? page_base(p, batch, key0) : 0;
    from[g] = page + kv_head * p.head_stride + (row_in_page(p, key0) + copy_row) * kD + copy_chunk * 8;
  }
  const std::uint32_t ring = base + warp * C::kWarpBytes;
  const ptx::L2Policy policy = p.pass_l2 ? ptx::L2Policy::evict_first : ptx::L2Policy::evict_normal;
  const auto copy_tiles = [&](const void* tensor, std::uint32_t tiles) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int key0 = warp_key + g * kGroupStep;
      const T* const source = static_cast<const T*>(tensor) + from[g];
      const std::uint32_t tile = tiles + g * C::kTileBytes;
      if (key0 + kWarpKeys <= end) {
#pragma unroll
        for (int j = 0; j < kWarpKeys / kRowsACopy; ++j) {
          ptx::cp_async_16(tile + swizzled<C::kChunks>(j * kRowsACopy + copy_row, copy_chunk),
                           source + j * kRowsACopy * kD, 16, policy);
        }
      } else if (key0 < end) {  // zeros behind the last key
#pragma unroll 1
        for (int j = 0; j < kWarpKeys / kRowsACopy; ++j) {
          const int row = j * kRowsACopy + copy_row;
          const bool there = key0 + row < end;
          ptx::cp_async_16(tile + swizzled<C::kChunks>(row, copy_chunk),
                           there ? source + j * kRowsACopy * kD : static_cast<const T*>(tensor), there ? 16 : 0,
                           policy);
        }
      }
    }
  };
  copy_tiles(p.k, ring);
  {
    const T* const queries =
        static_cast<const T*>(p.q) + batch * p.q_batch_stride + kv_head * p.group * p.q_head_stride + copy_chunk * 8;
#pragma unroll
    for (int j = 0; j < kMostShortRows / kRowsACopy; ++j) {  // rows that are not there: the last one again, for nobody
      const int row = j * kRowsACopy + copy_row;
      ptx::cp_async_16(ring + C::kQueriesAt + swizzled<C::kChunks>(row, copy_chunk),
                       queries + min(row, p.rows - 1) * p.q_head_stride, 16);
    }
  }
  ptx::cp_async_commit();
  copy_tiles(p.v, ring + kGroups * C::kTileBytes);
  ptx::cp_async_commit();
  const std::uint32_t barrier = base + C::kBarrierAt;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::arrive_at_cluster();

  // Scores of keys n * 8 + quad_column and the next one of each group, for query row lane / 4; of a product's 16 rows
  // the last eight are not there.
  const int quad_row = lane / 4;
  const int quad_column = lane % 4 * 2;
  float s[kGroups][2][2];
  const int key_row = lane % 8 + lane / 16 * 8;
  const int key_chunk = lane / 8 % 2;
  ptx::cp_async_wait<1>();
  __syncwarp();
  std::uint32_t q[kD / 16][4];
#pragma unroll
  for (int step = 0; step < kD / 16; step += 2) {
    std::uint32_t a[4];
    ptx::ldmatrix_x4(a, ring + C::kQueriesAt + swizzled<C::kChunks>(lane % 8, step * 2 + lane / 8));
    q[step][0] = a[0];
    q[step][2] = a[1];
    q[step + 1][0] = a[2];
    q[step + 1][2] = a[3];
    q[step][1] = q[step][3] = q[step + 1][1] = q[step + 1][3] = 0;
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int key0 = warp_key + g * kGroupStep;
    if (key0 >= end) {
#pragma unroll
      for (int n = 0; n < 2; ++n) s[g][n][0] = s[g][n][1] = kMinusInfinity;
      continue;
    }
    float sums[2][2][4] = {};  // of even and odd steps: half as many wait for each other
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, ring + g * C::kTileBytes + swizzled<C::kChunks>(key_row, step * 2 + key_chunk));
      ptx::mma_m16n8k16<T>(sums[step % 2][0], q[step], b[0], b[1]);
      ptx::mma_m16n8k16<T>(sums[step % 2][1], q[step], b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        s[g][n][j] = sums[0][n][j] + sums[1][n][j];
        if (key0 + n * 8 + quad_column + j >= end) s[g][n][j] = kMinusInfinity;
      }
    }
  }

  float top = kMinusInfinity;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int n = 0; n < 2; ++n) top = fmaxf(top, fmaxf(s[g][n][0], s[g][n][1]));
  }
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
  const float factor = p.scale * kLog2e;
  const float highest = top == kMinusInfinity ? 0.0f : top;
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        s[g][n][j] = ptx::exp2_approx((s[g][n][j] - highest) * factor);
        sum += s[g][n][j];
      }
    }
  }

  float o[kD / 8][4] = {};
  const int value_row = lane % 8 + lane / 8 % 2 * 8;
  const int value_chunk = lane / 16;
  ptx::cp_async_wait<0>();
  __syncwarp();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (warp_key + g * kGroupStep >= end) continue;
    const std::uint32_t probabilities[4] = {ptx::pack2<T>(s[g][0][0], s[g][0][1]), 0,
                                            ptx::pack2<T>(s[g][1][0], s[g][1][1]), 0};
#pragma unroll
    for (int pair = 0; pair < kD / 16; ++pair) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(
          b, ring + (kGroups + g) * C::kTileBytes + swizzled<C::kChunks>(value_row, pair * 2 + value_chunk));
      ptx::mma_m16n8k16<T>(o[2 * pair], probabilities, b[0], b[1]);
      ptx::mma_m16n8k16<T>(o[2 * pair + 1], probabilities, b[2], b[3]);
    }
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);

  // To each block its columns, and to all of them m and l.
  const int partial = warp / 4 * 32 + part * 4 + warp % 4;
  ptx::wait_for_cluster();  // all blocks have begun and set up their barriers
  // Bytes may come before they are announced: the phase waits for this arrival, too.
  if (threadIdx.x == 0) ptx::mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(p.rows * C::kRowBytes));
  if (quad_row < p.rows) {
    const std::uint32_t to = base + C::kSumsAt + (quad_row * C::kRowFloats + partial * C::kColumns + quad_column) * 4;
    constexpr int kTilesOfBlock = C::kColumns / 8;
#pragma unroll
    for (int rank = 0; rank < kShortParts; ++rank) {
      const std::uint32_t remote = ptx::address_of(to, rank);
      const std::uint32_t remote_barrier = ptx::address_of(barrier, rank);
#pragma unroll
      for (int n = 0; n < kTilesOfBlock; ++n) {
        const int tile = rank * kTilesOfBlock + n;
        ptx::store_float2_async(remote + n * 32, o[tile][0], o[tile][1], remote_barrier);
      }
    }
    const std::uint32_t weight_to = base + C::kWeightsAt + (quad_row * C::kPartials + partial) * 8;
#pragma unroll
    for (int rank = lane % 4; rank < kShortParts; rank += 4) {
      ptx::store_float2_async(ptx::address_of(weight_to, rank), top, sum, ptx::address_of(barrier, rank));
    }
  }

  // A warp joins a row: a lane has four columns of every kSources-th partial.
  if (warp >= p.rows) return;
  ptx::mbarrier_wait_cluster(barrier, 0);
  constexpr int kQuads = C::kColumns / 4;
  constexpr int kSources = 32 / kQuads;
  const int source = lane / kQuads;
  const float* const row_sums =
      reinterpret_cast<const float*>(shared + C::kSumsAt) + warp * C::kRowFloats + lane % kQuads * 4;
  const float2* const row_weights = reinterpret_cast<const float2*>(shared + C::kWeightsAt) + warp * C::kPartials;
  float4 parts[C::kPartials / kSources];
#pragma unroll
  for (int i = 0; i < C::kPartials / kSources; ++i) {
    parts[i] = *reinterpret_cast<const float4*>(row_sums + (i * kSources + source) * C::kColumns);
  }
  // A part's warps, which are four lanes' two: as join_warps() does it. Then the parts, a lane each.
  constexpr int kHalves = C::kPartials / 32;
  float m[kHalves], l[kHalves], weight[kHalves];
#pragma unroll
  for (int j = 0; j < kHalves; ++j) {
    const float2 both = row_weights[j * 32 + lane];
    m[j] = both.x;
    l[j] = both.y;
  }
  float part_top = fmaxf(m[0], m[1]);
  part_top = fmaxf(part_top, __shfl_xor_sync(0xffffffffu, part_top, 1));
  part_top = fmaxf(part_top, __shfl_xor_sync(0xffffffffu, part_top, 2));
#pragma unroll
  for (int j = 0; j < kHalves; ++j) weight[j] = weight_of(m[j], part_top, factor);
  float part_sum = fmaf(weight[0], l[0], weight[1] * l[1]);
  part_sum += __shfl_xor_sync(0xffffffffu, part_sum, 1);
  part_sum += __shfl_xor_sync(0xffffffffu, part_sum, 2);
  float of_part_m[1] = {__shfl_sync(0xffffffffu, part_top, lane * 4 % 32)};
  float of_part_l[1] = {__shfl_sync(0xffffffffu, part_sum, lane * 4 % 32)};
  float of_part[1];
  if (lane >= kShortParts) {
    of_part_m[0] = kMinusInfinity;
    of_part_l[0] = 0;
  }
  const float lse = part_weights(p.merge, kShortParts, p.scale, of_part_m, of_part_l, of_part);
  const float by_part = __shfl_sync(0xffffffffu, of_part[0], lane / 4);
#pragma unroll
  for (int j = 0; j < kHalves; ++j) weight[j] *= by_part;
  float4 value = make_float4(0, 0, 0, 0);
  constexpr int kTurns = 32 / kSources;  // in which the sources have had the partials of one register
#pragma unroll
  for (int i = 0; i < C::kPartials / kSources; ++i) {
    const float by = __shfl_sync(0xffffffffu, weight[i / kTurns], i % kTurns * kSources + source);
    value.x = fmaf(by, parts[i].x, value.x);
    value.y = fmaf(by, parts[i].y, value.y);
    value.z = fmaf(by, parts[i].z, value.z);
    value.w = fmaf(by, parts[i].w, value.w);
  }
#pragma unroll
  for (int distance = kQuads; distance < 32; distance *= 2) {
    value.x += __shfl_xor_sync(0xffffffffu, value.x, distance);
    value.y += __shfl_xor_sync(0xffffffffu, value.y, distance);
    value.z += __shfl_xor_sync(0xffffffffu, value.z, distance);
    value.w += __shfl_xor_sync(0xffffffffu, value.w, distance);
  }
  const int head = kv_head * p.group + warp;
  if (source == 0) {
    T* const to = static_cast<T*>(p.o) + batch * p.o_batch_stride + head * p.o_head_stride + part * C::kColumns +
                  lane % kQuads * 4;
    *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack2<T>(value.x, value.y), ptx::pack2<T>(value.z, value.w));
  }
  if (part == 0 && lane == 0) p.lse[static_cast<std::int64_t>(batch) * p.num_heads + head] = lse;
#endif
}

template <class T, int kD, int kGroups>
void launch_short_groups(const Params& p, void* stream) {
  using C = ShortConfig<kD, kGroups>;
  const auto kernel = decode_short_kernel<T, kD, kGroups>;
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kShortParts, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kShortParts, static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(p.batch));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

template <class T, int kD>
void launch_short(const Params& p, void* stream) {
  p.short_groups == 1 ? launch_short_groups<T, kD, 1>(p, stream) : launch_short_groups<T, kD, 2>(p, stream);
}

}  // namespace warpmeter::attention::cuda_decode
