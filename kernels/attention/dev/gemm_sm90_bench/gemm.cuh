#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/dev/gemm_sm90_bench/cluster.cuh"
#include "kernels/attention/dev/gemm_sm90_bench/gemm.hpp"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/quad.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/tensor_map.hpp"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"

/// C = A B for sm_90a, the plainest kernel that can be fast: what it loses to cuBLAS is the PTX layer's fault or the
/// tile's, not a softmax's. A block stays on its multiprocessor and goes through tiles of 128 x 256; one thread of its
/// first warpgroup fills a ring of stages through the copy engine, two warpgroups multiply 64 rows each.
namespace warpmeter::attention::gemm_sm90 {

struct Params {
  CUtensorMap a, b;
  __nv_bfloat16* c;
  std::int64_t c_row_stride;
  int m, n;
  int row_tiles;      ///< of kCluster blocks' rows
  int rows_together;  ///< of them, down a column before the next
  int column_tiles;
  int tiles;
  int k_blocks;
};

template <Layout kLayout_, int kCluster_>
struct Config {
  static constexpr Layout kLayout = kLayout_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
  static constexpr int kConsumers = kBlockM / 64;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kStages = 4;

  // A block is launched with 168 registers a thread; the warpgroups share them out.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 168 * (kConsumers + 1));

  static constexpr int kABytes = kBlockM * kBlockK * 2;
  static constexpr int kBBytes = kBlockN * kBlockK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  // A copy of B: rows of B where K lies along them; where N does, a panel of 64 columns.
  static constexpr int kBPanelBytes = kBlockK * 128;  ///< of mn_major
  static constexpr int kBRows = kLayout == Layout::k_major ? kBlockN / kCluster : kBlockK;
  static constexpr int kBCopyBytes = kBRows * 128;
  static constexpr int kBCopies = kBBytes / kCluster / kBCopyBytes;  ///< that each block of a cluster issues
  static_assert(kBlockK * 2 == 128 && kBCopies * kBCopyBytes * kCluster == kBBytes);

  static constexpr int kFull = kStages * kStageBytes;  ///< barriers, one a stage
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kSharedBytes = kEmpty + 8 * kStages + 1024;  ///< the base is aligned to 1024 by hand
  static_assert(kSharedBytes <= 227 * 1024);
};

/// A stage of the ring and the parity of its round.
template <int kStages>
struct RingPosition {
  std::uint32_t stage = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// Where a tile begins: its first row, of all blocks of the cluster, and its first column.
template <class Config>
struct TilePlace {
  int row, column;

  __device__ __forceinline__ TilePlace(const Params& params, int tile) {
    const int group_tiles = params.rows_together * params.column_tiles;
    const int group = tile / group_tiles;
    const int within = tile - group * group_tiles;
    const int first = group * params.rows_together;
    const int rows = min(params.rows_together, params.row_tiles - first);
    const int across = within / rows;
    row = (first + within - across * rows) * (Config::kCluster * Config::kBlockM);
    column = across * Config::kBlockN;
  }
};

/// The thread that feeds the copy engine.
template <class Config>
__device__ __forceinline__ void load_tiles(const Params& params, std::uint32_t shared, int rank) {
  ptx::prefetch_tensor_map(&params.a);
  ptx::prefetch_tensor_map(&params.b);
  RingPosition<Config::kStages> ring;
  const int first = static_cast<int>(blockIdx.x) / Config::kCluster;
  const int step = static_cast<int>(gridDim.x) / Config::kCluster;
  for (int tile = first; tile < params.tiles; tile += step) {
    const TilePlace<Config> place(params, tile);
    const int row = place.row + rank * Config::kBlockM;
#pragma unroll 1
    for (int block = 0; block < params.k_blocks; ++block) {
      const std::uint32_t full = shared + Config::kFull + 8 * ring.stage;
      const std::uint32_t a = shared + ring.stage * Config::kStageBytes;
      const int k = block * Config::kBlockK;
      // Given back by the consumers of every block of the cluster, for a copy of B goes to all of them.
      ptx::mbarrier_wait(shared + Config::kEmpty + 8 * ring.stage, ring.phase ^ 1);
      ptx::mbarrier_arrive_expect(full, Config::kStageBytes);
      ptx::tma_load_4d(a, &params.a, full, k, row, 0, 0, ptx::L2Policy::evict_normal);
#pragma unroll
      for (int i = 0; i < Config::kBCopies; ++i) {
        const int copy = rank * Config::kBCopies + i;
        const std::uint32_t b = a + Config::kABytes + copy * Config::kBCopyBytes;
        constexpr bool kAlongK = Config::kLayout == Layout::k_major;
        const int c0 = kAlongK ? k : place.column + copy * 64;
        const int c1 = kAlongK ? place.column + copy * Config::kBRows : k;
        if constexpr (Config::kCluster == 1) {
          ptx::tma_load_4d(b, &params.b, full, c0, c1, 0, 0, ptx::L2Policy::evict_normal);
        } else {
          ptx::tma_load_4d_multicast(b, &params.b, full, (1 << Config::kCluster) - 1, c0, c1, 0, 0,
                                     ptx::L2Policy::evict_normal);
        }
      }
      ring.advance();
    }
  }
}

/// Stores 64 rows of a tile from a warpgroup's accumulators, in pieces of 16 bytes.
template <class Config>
__device__ __forceinline__ void store_tile(const Params& params, int first_row, int first_column,
                                           const float (&d)[Config::kBlockN / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128, quad_thread = thread % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    __nv_bfloat16* const out = params.c + row * params.c_row_stride;
#pragma unroll
    for (int group = 0; group < Config::kBlockN / 8; group += 4) {
      std::uint32_t piece[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * (group + i) + 2 * r;
        piece[i] = ptx::pack2<__nv_bfloat16>(d[j], d[j + 1]);
      }
      ptx::transpose_quad(piece, quad_thread);
      const int column = first_column + (group + quad_thread) * 8;
      if (row < params.m && column < params.n) {
        *reinterpret_cast<uint4*>(out + column) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
      }
    }
  }
}

/// A warpgroup's way through the tiles: 64 rows of each.
template <class Config>
__device__ __forceinline__ void multiply_tiles(const Params& params, std::uint32_t shared, int rank, int consumer) {
  constexpr bool kTransposeB = Config::kLayout == Layout::mn_major;
  constexpr int kBStep = kTransposeB ? 16 * 128 : 16 * 2;  // bytes, of 16 in K
  const std::uint64_t a = ptx::swizzled_descriptor(shared + consumer * (64 * 128), 0);
  const std::uint64_t b = ptx::swizzled_descriptor(shared + Config::kABytes, Config::kBPanelBytes);
  const auto release = [&](std::uint32_t stage) {
    const std::uint32_t barrier = shared + Config::kEmpty + 8 * stage;
    const std::uint32_t lane = threadIdx.x % 32;
    if constexpr (Config::kCluster == 1) {
      if (lane == 0) ptx::mbarrier_arrive(barrier);
    } else {
      if (lane < Config::kCluster) ptx::mbarrier_arrive_at(barrier, lane);
    }
  };
  RingPosition<Config::kStages> ring;
  float d[Config::kBlockN / 2];
  const int first = static_cast<int>(blockIdx.x) / Config::kCluster;
  const int step = static_cast<int>(gridDim.x) / Config::kCluster;
  for (int tile = first; tile < params.tiles; tile += step) {
    std::uint32_t previous = 0;
#pragma unroll 1
    for (int block = 0; block < params.k_blocks; ++block) {
      ptx::mbarrier_wait(shared + Config::kFull + 8 * ring.stage, ring.phase);
      const std::uint32_t stage = ring.stage * (Config::kStageBytes / 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < Config::kBlockK / 16; ++k) {
        ptx::Wgmma<__nv_bfloat16, Config::kBlockN>::template shared_shared<kTransposeB>(
            d, a + stage + k * (16 * 2 / 16), b + stage + k * (kBStep / 16), k > 0 || block > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (block > 0) release(previous);  // the products of the step before are done
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous);
    ptx::hold_registers(d);
    const TilePlace<Config> place(params, tile);
    store_tile<Config>(params, place.row + rank * Config::kBlockM + consumer * 64, place.column, d);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) gemm_kernel(const __grid_constant__ Params params) {
  extern __shared__ unsigned char shared_memory[];
  const std::uint32_t shared = (ptx::shared_address(shared_memory) + 1023) / 1024 * 1024;
  int rank = 0;
  if constexpr (Config::kCluster > 1) rank = static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(shared + Config::kFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kEmpty + 8 * i, 4 * Config::kConsumers * Config::kCluster);
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (Config::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::set_max_registers_less<Config::kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles<Config>(params, shared, rank);
  } else {
    ptx::set_max_registers_more<Config::kConsumerRegisters>();
    multiply_tiles<Config>(params, shared, rank, warpgroup - 1);
  }
  // Others may still arrive at this block's barriers, or copy to its memory what it has not waited for.
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}

template <Layout kLayout, int kCluster>
void launch(const Gemm& gemm, int multiprocessors, cudaStream_t stream) {
  using C = Config<kLayout, kCluster>;
  using flash_sm80::check_cuda;
  const auto map = [](const __nv_bfloat16* data, std::int64_t rows, std::int64_t columns, int box_rows) {
    const ptx::MapOperand operand{data, rows * columns, rows * columns, columns};
    return ptx::make_tensor_map(operand, true, 1, 1, rows, static_cast<int>(columns), box_rows);
  };
  const auto tiles = [](std::int64_t size, int tile) { return static_cast<int>((size + tile - 1) / tile); };
  Params params;
  params.a = map(gemm.a, gemm.m, gemm.k, C::kBlockM);
  if constexpr (kLayout == Layout::k_major) {
    params.b = map(gemm.b, gemm.n, gemm.k, C::kBRows);
  } else {
    params.b = map(gemm.b, gemm.k, gemm.n, C::kBRows);
  }
  params.c = gemm.c;
  params.c_row_stride = gemm.n;
  params.m = static_cast<int>(gemm.m);
  params.n = static_cast<int>(gemm.n);
  params.row_tiles = tiles(gemm.m, C::kBlockM * kCluster);
  params.rows_together = std::max(1, gemm.rows_together / kCluster);
  params.column_tiles = tiles(gemm.n, C::kBlockN);
  params.tiles = params.row_tiles * params.column_tiles;
  params.k_blocks = tiles(gemm.k, C::kBlockK);

  const auto kernel = gemm_kernel<C>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes),
             "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(params.tiles, multiprocessors / kCluster) * kCluster));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "kernel launch");
}

}  // namespace warpmeter::attention::gemm_sm90
