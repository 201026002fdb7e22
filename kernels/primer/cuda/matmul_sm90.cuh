#pragma once

#include <cstdint>

#include <cuda.h>

#include "kernels/primer/cuda/toolbox.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/quad.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/tensor_map.hpp"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"

/// z = a y on Hopper's tensor cores, 16-bit operands and fp32 sums: what batched_matmul and int4_matmul share. They
/// differ in how a comes: through the copy engine as it is (SharedA), or from packed weights through registers
/// (int4_matmul).
///
/// One block of three warpgroups stays on each multiprocessor and goes through tiles of 128 x 256 results. Thread 0 of
/// the first warpgroup loads: it fills a ring of stages, each 64 steps of the inner dimension, through the copy engine.
/// The other two multiply, 64 rows each. Barriers of a stage: `full`, completed by the copies; `empty`, by the eight
/// warps that have multiplied.
namespace warpmeter::primer::matmul_sm90 {

constexpr int kTileRows = 128, kTileCols = 256, kTileInner = 64;
constexpr int kThreads = 3 * 128;
constexpr int kRowsTogether = 16;  ///< tiles down a column before the next column: neighbours share what L2 holds

struct Params {
  CUtensorMap a, y;
  void* z;
  std::int64_t rows, cols;
  int row_tiles, col_tiles, tiles, steps;
};

struct TilePlace {
  int batch, row, col;

  __device__ __forceinline__ TilePlace(const Params& params, int tile) {
    const int of_batch = params.row_tiles * params.col_tiles;
    batch = tile / of_batch;
    const int group_tiles = kRowsTogether * params.col_tiles;
    const int within_batch = tile - batch * of_batch, group = within_batch / group_tiles;
    const int within = within_batch - group * group_tiles, first = group * kRowsTogether;
    const int down = min(kRowsTogether, params.row_tiles - first);
    row = (first + within % down) * kTileRows;
    col = within / down * kTileCols;
  }
};

/// The stage in turn, and the parity of its barriers' phase.
template <int kStages>
struct Ring {
  std::uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// How shared memory is dealt out, for an `a` that takes kABytes of a stage.
template <int kABytes_>
struct Shared {
  static constexpr int kABytes = kABytes_, kPanelBytes = kTileInner * 128;  // 64 columns of y
  static constexpr int kStageBytes = kABytes + kTileCols / 64 * kPanelBytes;
  static constexpr int kStages = 200 * 1024 / kStageBytes;
  static constexpr int kFull = kStages * kStageBytes, kEmpty = kFull + 8 * kStages;
  static constexpr int kBytes = kEmpty + 8 * kStages + 1024;  // the base is aligned to 1024 by hand
};

/// The thread that loads: y's part of each step, and a's where it comes this way.
template <class S>
__device__ __forceinline__ void load_tiles(const Params& params, std::uint32_t shared) {
  Ring<S::kStages> ring;
  for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const TilePlace place(params, tile);
    for (int step = 0; step < params.steps; ++step) {
      const std::uint32_t full = shared + S::kFull + 8 * ring.stage, at = shared + ring.stage * S::kStageBytes;
      ptx::mbarrier_wait(shared + S::kEmpty + 8 * ring.stage, ring.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, S::kStageBytes);
      if constexpr (S::kABytes > 0) {
        ptx::tma_load_4d(at, &params.a, full, step * kTileInner, place.row, 0, place.batch,
                         ptx::L2Policy::evict_normal);
      }
#pragma unroll
      for (int panel = 0; panel < kTileCols / 64; ++panel) {
        ptx::tma_load_4d(at + S::kABytes + panel * S::kPanelBytes, &params.y, full, place.col + panel * 64,
                         step * kTileInner, 0, place.batch, ptx::L2Policy::evict_normal);
      }
      ring.advance();
    }
  }
}

/// Stores 64 rows of results: four neighbouring threads exchange theirs, so that each stores 16 bytes.
template <class T>
__device__ __forceinline__ void store_tile(const Params& params, const TilePlace& place, int first_row,
                                           const float (&d)[kTileCols / 2]) {
  const int thread = threadIdx.x % 128, quad_thread = thread % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = place.row + first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    T* const out = static_cast<T*>(params.z) + (place.batch * params.rows + row) * params.cols;
#pragma unroll
    for (int group = 0; group < kTileCols / 8; group += 4) {
      std::uint32_t piece[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        piece[i] = ptx::pack2<T>(d[4 * (group + i) + 2 * half], d[4 * (group + i) + 2 * half + 1]);
      }
      ptx::transpose_quad(piece, quad_thread);
      const int col = place.col + (group + quad_thread) * 8;
      if (row < params.rows && col < params.cols) {
        *reinterpret_cast<uint4*>(out + col) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
      }
    }
  }
}

/// `a` in 16 bits, loaded like y. Its stage has 128 rows of 64 elements.
template <class T>
struct SharedA {
  static constexpr int kStageBytes = kTileRows * kTileInner * 2;

  __device__ __forceinline__ void begin(const TilePlace&, int /*first_row*/) {}
  /// d += a y of step `step`, whose stage is at `at`.
  __device__ __forceinline__ void multiply(float (&d)[kTileCols / 2], int step, std::uint32_t at, int first_row) {
    const std::uint64_t a = ptx::swizzled_descriptor(at + first_row * 128, 0);
    const std::uint64_t y = ptx::swizzled_descriptor(at + kStageBytes, kTileInner * 128);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileInner / 16; ++k) {  // descriptors count in 16 bytes
      ptx::Wgmma<T, kTileCols>::template shared_shared<true>(d, a + k * 2, y + k * 16 * 128 / 16, step > 0 || k > 0);
    }
    ptx::wgmma_commit();
  }
  static constexpr int kPending = 1;  ///< the next step's products may be issued before these are done
};

template <class T, class A>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Params params, A operand) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shared<A::kStageBytes>;
  extern __shared__ unsigned char memory[];
  const std::uint32_t shared = (ptx::shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      ptx::mbarrier_init(shared + S::kFull + 8 * i, 1);
      ptx::mbarrier_init(shared + S::kEmpty + 8 * i, 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::set_max_registers_less<40>();  // 168 a thread at launch: what this one gives up the others get
    if (threadIdx.x == 0) load_tiles<S>(params, shared);
    return;
  }
  ptx::set_max_registers_more<232>();
  const int first_row = (warpgroup - 1) * 64;
  const auto release = [&](std::uint32_t stage) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared + S::kEmpty + 8 * stage);
  };
  Ring<S::kStages> ring;
  float d[kTileCols / 2];
  for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const TilePlace place(params, tile);
    operand.begin(place, first_row);
    std::uint32_t previous = 0;
#pragma unroll 1
    for (int step = 0; step < params.steps; ++step) {
      ptx::mbarrier_wait(shared + S::kFull + 8 * ring.stage, ring.parity);
      operand.multiply(d, step, shared + ring.stage * S::kStageBytes, first_row);
      ptx::wgmma_wait<A::kPending>();
      if (A::kPending == 0) {
        release(ring.stage);
      } else if (step > 0) {
        release(previous);  // its products are done: only this step's are under way
      }
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    if (A::kPending > 0) release(previous);
    ptx::hold_registers(d);
    store_tile<T>(params, place, first_row, d);
  }
#endif
}

/// A (batch, rows, cols) operand as the copy engine reads it: boxes of 64 columns and `box_rows` rows.
template <class T>
CUtensorMap tensor_map(const T* data, std::int64_t batch, std::int64_t rows, std::int64_t cols, int box_rows) {
  return ptx::make_tensor_map({data, rows * cols, rows * cols, cols}, std::is_same_v<T, __nv_bfloat16>, batch, 1, rows,
                              static_cast<int>(cols), box_rows);
}

/// Whether this device runs it and the copy engine takes rows of these lengths: whole 16 bytes.
inline bool takes(StreamView stream, std::int64_t batch, std::int64_t rows, std::int64_t cols, std::int64_t inner) {
  int major = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device.index));
  const std::int64_t tiles = batch * ceil_div(rows, kTileRows) * ceil_div(cols, kTileCols);
  return major == 9 && cols % 8 == 0 && inner % 8 == 0 && std::max({rows, cols, inner}) < (1 << 30) &&
         tiles < (1 << 30);
}

template <class T, class A>
void launch(Params params, const A& operand, const T* y, T* z, std::int64_t batch, std::int64_t rows, std::int64_t cols,
            std::int64_t inner, StreamView stream) {
  params.y = tensor_map(y, batch, inner, cols, kTileInner);
  params.z = z;
  params.rows = rows;
  params.cols = cols;
  params.row_tiles = static_cast<int>(ceil_div(rows, kTileRows));
  params.col_tiles = static_cast<int>(ceil_div(cols, kTileCols));
  params.tiles = static_cast<int>(batch) * params.row_tiles * params.col_tiles;
  params.steps = static_cast<int>(ceil_div(inner, kTileInner));
  constexpr int kBytes = Shared<A::kStageBytes>::kBytes;
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel<T, A>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = std::min(params.tiles, multiprocessors(stream));
  kernel<T, A><<<static_cast<unsigned>(blocks), kThreads, kBytes, handle(stream)>>>(params, operand);
  check_launch();
}

}  // namespace warpmeter::primer::matmul_sm90
