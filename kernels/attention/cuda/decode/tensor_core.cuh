// Flash decoding on tensor cores, for 16-bit caches.
//
// A block of four (or eight, or two) warps has one stream of one key/value head and up to 32 of its query rows: the
// heads of the group times the query tokens, so that a key is read once for all of them. The warps share nothing but
// the queries: each takes every so many-th group of 16 keys, copies them to its own ring of shared memory (cp.async, 16
// bytes a lane, chunks swizzled by row), multiplies S = Q K^T and O += P V with mma.m16n8k16 and keeps its own online
// softmax; the only barriers are at the end, where their results are joined. What bounds it is memory: two blocks an
// SM, or a wide one, have some 128 KiB on the way.
//
// Then the parts of a row are merged, by their cluster, or by whichever block is done last, unless that is left to a
// kernel of its own (finish.cuh).
//
// Keys and values pass through the L2 cache once: their lines are the first to go, so that what others keep there
// stays, and is not written back meanwhile.
//
// Grid: (row block x part, key/value head, sequence).

#pragma once

#include "kernels/attention/cuda/decode/finish.cuh"
#include "kernels/attention/cuda/decode/swizzle.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"

namespace warpmeter::attention::cuda_decode {

/// kD: head_dim rounded up; kTiles: of 16 query rows.
template <int kD, int kTiles, DecodeBlock kShape>
struct TileConfig {
  static constexpr bool kSmall = kShape == DecodeBlock::small;
  static constexpr int kWarps = warps_of(kShape, kD);
  static constexpr int kBlocksAProcessor = kShape == DecodeBlock::wide ? 1 : 2;  // that its registers leave room for
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kTiles * 16;
  static constexpr int kChunks = kD / 8;                 // of 16 bytes a row
  static constexpr int kTileBytes = kWarpKeys * kD * 2;  // of K or V
  static constexpr int kStages = kD == 64 ? (kSmall ? 4 : 6) : kSmall ? 2 : 3;
  static constexpr int kQueryBytes = kRows * kD * 2;
  static constexpr int kJoinWidth = kD + 4;  // floats; off the powers of two
  static constexpr int kJoinBytes = (kWarps * kRows * (kJoinWidth + 2) + 2 * kRows + 4) * 4;
  /// Of a warp's ring with `stages` groups.
  static constexpr __host__ __device__ int ring_bytes(int stages) { return stages * 2 * kTileBytes; }
  static constexpr __host__ __device__ int shared_bytes(int stages) {
    const int loop = kWarps * ring_bytes(stages) + kQueryBytes;
    return loop > kJoinBytes ? loop : kJoinBytes;
  }
};

template <class T, int kD, int kTiles, DecodeBlock kShape>
__global__ void __launch_bounds__(TileConfig<kD, kTiles, kShape>::kThreads,
                                  TileConfig<kD, kTiles, kShape>::kBlocksAProcessor)
    decode_tile_kernel(const Params p) {
  using C = TileConfig<kD, kTiles, kShape>;
  extern __shared__ __align__(128) unsigned char shared[];
  const std::uint32_t base = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  // A sequence of few groups needs a ring of as many.
  const int ring_bytes = C::ring_bytes(p.stages < C::kStages ? p.stages : C::kStages);
  const int row_blocks = (p.rows + C::kRows - 1) / C::kRows;
  // The parts of a row block are neighbours: they may be a cluster.
  const int row_block = row_blocks == 1 ? 0 : blockIdx.x / p.parts;
  const int part = blockIdx.x - row_block * p.parts;
  const int first_row = row_block * C::kRows;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const Stream stream(p, batch, part, kWarpKeys);
  const std::uint32_t ring = base + warp * ring_bytes;
  const std::uint32_t queries = base + C::kWarps * ring_bytes;
  const ptx::L2Policy policy = p.pass_l2 ? ptx::L2Policy::evict_first : ptx::L2Policy::evict_normal;
  const T* const k = static_cast<const T*>(p.k) + kv_head * p.head_stride;
  const T* const v = static_cast<const T*>(p.v) + kv_head * p.head_stride;

  // This warp's groups: warp, warp + kWarps, ...
  const int groups = stream.groups > warp ? (stream.groups - warp + C::kWarps - 1) / C::kWarps : 0;
  const auto key_of = [&](int i) { return stream.key(warp + i * C::kWarps, kWarpKeys); };
  // The page of the group that is copied next is looked up one group ahead.
  std::int64_t next_page = groups > 0 ? page_base(p, batch, key_of(0)) : 0;
  // Whole groups of dense rows, the usual ones: a lane has one chunk of every kRowsACopy-th row, so that all but the
  // group's own start is known beforehand.
  constexpr int kRowsACopy = 32 / C::kChunks;
  static_assert(C::kChunks <= 32);
  const bool dense = p.row_stride == kD && p.head_dim == kD;
  const int lane_start = lane / C::kChunks * kD + lane % C::kChunks * 8;  // elements
  const auto copy_group = [&](int i) {
    if (i < groups) {
      const int key0 = key_of(i);
      const std::int64_t page = next_page;
      if (i + 1 < groups) next_page = page_base(p, batch, key_of(i + 1));
      const std::uint32_t slot = ring + i % C::kStages * 2 * C::kTileBytes;
      if (dense && key0 <= stream.length - kWarpKeys) {
        const std::int64_t start = page + std::int64_t{row_in_page(p, key0)} * kD + lane_start;
        const T* const from_k = k + start;
        const T* const from_v = v + start;
#pragma unroll
        for (int j = 0; j < kWarpKeys / kRowsACopy; ++j) {
          const std::uint32_t to = slot + swizzled<C::kChunks>(j * kRowsACopy + lane / C::kChunks, lane % C::kChunks);
          ptx::cp_async_16(to, from_k + j * kRowsACopy * kD, 16, policy);
          ptx::cp_async_16(to + C::kTileBytes, from_v + j * kRowsACopy * kD, 16, policy);
        }
      } else {
        const std::int64_t start = page + row_in_page(p, key0) * p.row_stride;
#pragma unroll 4
        for (int j = 0; j < kWarpKeys * C::kChunks / 32; ++j) {
          const int index = j * 32 + lane;
          const int row = index / C::kChunks;
          const int chunk = index % C::kChunks;
          const bool there = key0 + row < stream.length && chunk * 8 < p.head_dim;
          const std::int64_t at = there ? start + row * p.row_stride + chunk * 8 : start;
          const std::uint32_t to = slot + swizzled<C::kChunks>(row, chunk);
          ptx::cp_async_16(to, k + at, there ? 16 : 0, policy);
          ptx::cp_async_16(to + C::kTileBytes, v + at, there ? 16 : 0, policy);
        }
      }
    }
    ptx::cp_async_commit();  // an empty group, too: the count of groups is what is waited for
  };
#pragma unroll
  for (int i = 0; i < C::kStages - 1; ++i) copy_group(i);

  // The queries, zeros where there is no row or column.
  for (int index = threadIdx.x; index < C::kRows * C::kChunks; index += C::kThreads) {
    const int row = index / C::kChunks;
    const int chunk = index % C::kChunks;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (first_row + row < p.rows && chunk * 8 < p.head_dim) {
      const T* const from = static_cast<const T*>(p.q) + query_offset(p, batch, kv_head, first_row + row) + chunk * 8;
      bits = *reinterpret_cast<const uint4*>(from);
    }
    *reinterpret_cast<uint4*>(shared + C::kWarps * ring_bytes + swizzled<C::kChunks>(row, chunk)) = bits;
  }
  __syncthreads();

  const int lane_row = lane % 8 + lane / 8 % 2 * 8;  // of a 16 x 16 operand whose second matrix is below
  const int lane_chunk = lane / 16;
  const int key_row = lane % 8 + lane / 16 * 8;  // whose second matrix is to the right
  const int key_chunk = lane / 8 % 2;
  const auto query_fragment = [&](int tile, int step, std::uint32_t(&a)[4]) {
    ptx::ldmatrix_x4(a, queries + swizzled<C::kChunks>(tile * 16 + lane_row, step * 2 + lane_chunk));
  };
  constexpr bool kQueriesInRegisters = kTiles == 1 && kD <= 128;
  std::uint32_t q[kQueriesInRegisters ? kD / 16 : 1][4];
  if constexpr (kQueriesInRegisters) {
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) query_fragment(0, step, q[step]);
  }

  const float factor = p.scale * kLog2e;
  const int quad_row = lane / 4;
  const int quad_column = lane % 4 * 2;
  float o[kTiles][kD / 8][4];
  float m[kTiles][2], l[kTiles][2];
  int limit[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[tile][n][i] = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      m[tile][half] = kMinusInfinity;
      l[tile][half] = 0;
      // Rows that are not there follow the last one.
      limit[tile][half] = limit_of(p, stream.length, min(first_row + tile * 16 + half * 8 + quad_row, p.rows - 1));
    }
  }
  const bool upper = p.rows - first_row > 8;
  const int seen_by_all = limit_of(p, stream.length, first_row);

  for (int i = 0; i < groups; ++i) {
    ptx::cp_async_wait<C::kStages - 2>();
    __syncwarp();  // every lane's copies of group i are there, and every lane is done with the slot filled next
    copy_group(i + C::kStages - 1);
    const std::uint32_t keys = ring + i % C::kStages * 2 * C::kTileBytes;
    const std::uint32_t values = keys + C::kTileBytes;

    float s[kTiles][2][4] = {};
    float odd[2][4] = {};  // with one tile every other step has sums of its own: half as many wait for each other
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, keys + swizzled<C::kChunks>(key_row, step * 2 + key_chunk));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if constexpr (kQueriesInRegisters) {
          ptx::mma_m16n8k16<T>(step % 2 == 0 ? s[tile][0] : odd[0], q[step], b[0], b[1]);
          ptx::mma_m16n8k16<T>(step % 2 == 0 ? s[tile][1] : odd[1], q[step], b[2], b[3]);
        } else {
          std::uint32_t a[4];
          query_fragment(tile, step, a);
          ptx::mma_m16n8k16<T>(s[tile][0], a, b[0], b[1]);
          ptx::mma_m16n8k16<T>(s[tile][1], a, b[2], b[3]);
        }
      }
    }

    if constexpr (kQueriesInRegisters) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s[0][n][j] += odd[n][j];
      }
    }

    const int key0 = key_of(i);
    if (key0 > seen_by_all - kWarpKeys) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (key0 + n * 8 + quad_column + j % 2 >= limit[tile][j / 2]) s[tile][n][j] = kMinusInfinity;
          }
        }
      }
    }

    std::uint32_t probabilities[kTiles][4];
    float shrink[kTiles][2];
    bool grown = false;  // one question for all rows: what is between has nothing to wait for
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shrink[tile][half] = 1;
        if (kTiles == 1 && half == 1 && !upper) {  // none of the tile's last eight rows is there
          probabilities[tile][1] = probabilities[tile][3] = 0;
          continue;
        }
        float top = fmaxf(fmaxf(s[tile][0][2 * half], s[tile][0][2 * half + 1]),
                          fmaxf(s[tile][1][2 * half], s[tile][1][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float highest = fmaxf(m[tile][half], top);
        const float from = highest == kMinusInfinity ? 0.0f : highest;  // nothing seen yet: -inf - 0
        shrink[tile][half] = ptx::exp2_approx((m[tile][half] - from) * factor);
        grown = grown || shrink[tile][half] != 1.0f;
        m[tile][half] = highest;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& x = s[tile][n][2 * half + j];
            x = ptx::exp2_approx((x - from) * factor);
            sum += x;
          }
        }
        l[tile][half] = l[tile][half] * shrink[tile][half] + sum;
        probabilities[tile][half] = ptx::pack2<T>(s[tile][0][2 * half], s[tile][0][2 * half + 1]);
        probabilities[tile][2 + half] = ptx::pack2<T>(s[tile][1][2 * half], s[tile][1][2 * half + 1]);
      }
    }
    if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[tile][n][i] *= shrink[tile][i / 2];
        }
      }
    }

#pragma unroll
    for (int pair = 0; pair < kD / 16; ++pair) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, values + swizzled<C::kChunks>(lane_row, pair * 2 + lane_chunk));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        ptx::mma_m16n8k16<T>(o[tile][2 * pair], probabilities[tile], b[0], b[1]);
        ptx::mma_m16n8k16<T>(o[tile][2 * pair + 1], probabilities[tile], b[2], b[3]);
      }
    }
  }

  // The warps' results meet where the rings were.
  ptx::cp_async_wait<0>();
  __syncthreads();
  const RowBlock block{batch, kv_head, part, row_block, first_row, min(C::kRows, p.rows - first_row)};
  WarpResults joined;
  joined.o = reinterpret_cast<float*>(shared);
  joined.m = joined.o + C::kWarps * C::kRows * C::kJoinWidth;
  joined.l = joined.m + C::kWarps * C::kRows;
  joined.top = joined.l + C::kWarps * C::kRows;
  joined.sum = joined.top + C::kRows;
  joined.tile_rows = C::kRows;
  joined.width = C::kJoinWidth;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = l[tile][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int row = tile * 16 + half * 8 + quad_row;
      if (row >= block.rows) continue;
      const int at = warp * C::kRows + row;
      if (lane % 4 == 0) {
        joined.m[at] = m[tile][half];
        joined.l[at] = sum;
      }
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        *reinterpret_cast<float2*>(joined.o + at * C::kJoinWidth + n * 8 + quad_column) =
            make_float2(o[tile][n][2 * half], o[tile][n][2 * half + 1]);
      }
    }
  }
  __syncthreads();
  join_warps<kD, C::kWarps, C::kThreads>(p, block, joined);
  if (p.join == Join::cluster) {
    merge_in_cluster<C::kWarps>(p, block, joined);
  } else if (p.join == Join::last_block) {
    merge_by_last_block<C::kWarps>(p, block, row_blocks, reinterpret_cast<int*>(joined.sum + C::kRows));
  }
}

}  // namespace warpmeter::attention::cuda_decode
