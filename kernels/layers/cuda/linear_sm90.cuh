#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <cuda.h>

#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/quad.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/tensor_map.hpp"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"

/// y = x W^T for sm_90a with an epilogue that gets the sums in registers: x (rows, in), W (columns, in), both 16-bit
/// with K along the rows, sums fp32.
///
///   tile    128 rows x kColumns; a block stays on its multiprocessor and goes through tiles
///   blocks  three warpgroups: one thread of the first fills a ring of stages of 64 steps of K through the copy engine,
///           the other two multiply 64 rows each
///   shared  kStages * (128 + kColumns) * 128 bytes and two barriers a stage: the copies complete `full`, the eight
///           warps that have multiplied `empty`
///   early   begins beside the end of the kernel before it: barriers, then the first stages' weights; x and all writes
///           come after that kernel
///   limits  `in` a multiple of 8 (rows of whole 16 bytes)
namespace warpmeter::layers::cuda::linear_sm90 {

constexpr int kRows = 128, kInner = 64, kThreads = 3 * 128;
constexpr int kRowsTogether = 16;  ///< tiles down a column before the next column: neighbours share what L2 holds
constexpr int kWeightParts = 2;    ///< a tile's columns come in two boxes, from wherever the epilogue wants them

struct Params {
  CUtensorMap x, weight;
  int rows, row_tiles, column_tiles, tiles, steps;
};

template <int kColumns_>
struct Config {
  static constexpr int kColumns = kColumns_;
  static constexpr int kXBytes = kRows * kInner * 2, kPartRows = kColumns / kWeightParts;
  static constexpr int kPartBytes = kPartRows * kInner * 2;
  static_assert(kPartBytes % 1024 == 0, "a part begins on a group of eight swizzled rows");
  static constexpr int kStageBytes = kXBytes + kWeightParts * kPartBytes;
  static constexpr int kStages = 200 * 1024 / kStageBytes;
  static constexpr int kFull = kStages * kStageBytes, kEmpty = kFull + 8 * kStages;
  static constexpr int kSharedBytes = kEmpty + 8 * kStages + 1024;  // the base is aligned to 1024 by hand
  static_assert(kSharedBytes <= 227 * 1024);
};

struct TilePlace {
  int row, column_tile;

  __device__ __forceinline__ TilePlace(const Params& params, int tile) {
    const int group_tiles = kRowsTogether * params.column_tiles;
    const int group = tile / group_tiles, within = tile - group * group_tiles, first = group * kRowsTogether;
    const int down = min(kRowsTogether, params.row_tiles - first);
    row = (first + within % down) * kRows;
    column_tile = within / down;
  }
};

template <int kStages>
struct Ring {
  std::uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// The thread that loads. Epilogue::weight_row(column_tile, part): the first row of W of a part of a tile's columns.
template <class C, class Epilogue>
__device__ __forceinline__ void load_tiles(const Params& params, const Epilogue& epilogue, std::uint32_t shared) {
  ptx::prefetch_tensor_map(&params.x);
  ptx::prefetch_tensor_map(&params.weight);
  const auto full_of = [&](std::uint32_t stage) { return shared + C::kFull + 8 * stage; };
  const auto load_weights = [&](const TilePlace& place, std::uint32_t stage, int step) {
    ptx::mbarrier_arrive_expect(full_of(stage), C::kStageBytes);
#pragma unroll
    for (int part = 0; part < kWeightParts; ++part) {
      ptx::tma_load_4d(shared + stage * C::kStageBytes + C::kXBytes + part * C::kPartBytes, &params.weight,
                       full_of(stage), step * kInner, epilogue.weight_row(place.column_tile, part), 0, 0,
                       ptx::L2Policy::evict_normal);
    }
  };
  const auto load_x = [&](const TilePlace& place, std::uint32_t stage, int step) {
    ptx::tma_load_4d(shared + stage * C::kStageBytes, &params.x, full_of(stage), step * kInner, place.row, 0, 0,
                     ptx::L2Policy::evict_normal);
  };
  // Nothing of these stages has been used yet: no `empty` to wait for. There are no more blocks than tiles.
  const int early = min(C::kStages, params.steps);
  const TilePlace first(params, static_cast<int>(blockIdx.x));
  for (int step = 0; step < early; ++step) load_weights(first, static_cast<std::uint32_t>(step), step);
  follow_previous();
  for (int step = 0; step < early; ++step) load_x(first, static_cast<std::uint32_t>(step), step);

  Ring<C::kStages> ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x)) {
    const TilePlace place(params, tile);
#pragma unroll 1
    for (int step = 0; step < params.steps; ++step) {
      if (tile != static_cast<int>(blockIdx.x) || step >= early) {
        ptx::mbarrier_wait(shared + C::kEmpty + 8 * ring.stage, ring.parity ^ 1);
        load_weights(place, ring.stage, step);
        load_x(place, ring.stage, step);
      }
      ring.advance();
    }
  }
}

/// A warpgroup's way through the tiles. Epilogue::store<T, kColumns>(d, row, column_tile): d as ptx/wgmma.cuh has it,
/// of which `row` is this warpgroup's first.
template <class T, class C, class Epilogue>
__device__ __forceinline__ void multiply_tiles(const Params& params, const Epilogue& epilogue, std::uint32_t shared,
                                               int consumer) {
  const std::uint64_t x = ptx::swizzled_descriptor(shared + consumer * (64 * 128), 0);
  const std::uint64_t weight = ptx::swizzled_descriptor(shared + C::kXBytes, 0);
  const auto release = [&](std::uint32_t stage) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared + C::kEmpty + 8 * stage);
  };
  Ring<C::kStages> ring;
  float d[C::kColumns / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x)) {
    std::uint32_t previous = 0;
#pragma unroll 1
    for (int step = 0; step < params.steps; ++step) {
      ptx::mbarrier_wait(shared + C::kFull + 8 * ring.stage, ring.parity);
      const std::uint32_t at = ring.stage * (C::kStageBytes / 16);  // descriptors count in 16 bytes
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kInner / 16; ++k) {
        ptx::Wgmma<T, C::kColumns>::template shared_shared<false>(d, x + at + k * 2, weight + at + k * 2,
                                                                  k > 0 || step > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step > 0) release(previous);  // its products are done: only this step's are under way
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous);
    ptx::hold_registers(d);
    const TilePlace place(params, tile);
    epilogue.template store<T, C::kColumns>(d, place.row + consumer * 64, place.column_tile);
  }
}

template <class T, int kColumns, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Params params, Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using C = Config<kColumns>;
  extern __shared__ unsigned char memory[];
  const std::uint32_t shared = (ptx::shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(shared + C::kFull + 8 * i, 1);
      ptx::mbarrier_init(shared + C::kEmpty + 8 * i, 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::set_max_registers_less<40>();  // 168 a thread at launch: what this one gives up the others get
    if (threadIdx.x == 0) {
      load_tiles<C>(params, epilogue, shared);
    } else {
      follow_previous();
    }
  } else {
    ptx::set_max_registers_more<232>();
    follow_previous();
    multiply_tiles<T, C>(params, epilogue, shared, warpgroup - 1);
  }
#endif
}

/// This thread's row of its warpgroup's 64, of its first (0) or second half.
__device__ __forceinline__ int row_of_thread(int half) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  return thread / 32 * 16 + thread % 32 / 4 + 8 * half;
}

template <class T>
[[nodiscard]] CUtensorMap map_of(const void* data, std::int64_t rows, std::int64_t in, int box_rows) {
  return ptx::make_tensor_map({data, rows * in, rows * in, in}, std::is_same_v<T, __nv_bfloat16>, 1, 1, rows,
                              static_cast<int>(in), box_rows);
}

/// `columns`: of y, in tiles of kColumns.
template <class T, int kColumns, class Epilogue>
void launch_tiles(const Context& context, const Epilogue& epilogue, const void* x, std::int64_t rows,
                  const void* weight, std::int64_t weight_rows, std::int64_t in, std::int64_t columns,
                  int multiprocessors) {
  using C = Config<kColumns>;
  Params params;
  params.x = map_of<T>(x, rows, in, kRows);
  params.weight = map_of<T>(weight, weight_rows, in, C::kPartRows);
  params.rows = static_cast<int>(rows);
  params.row_tiles = static_cast<int>(divide_up(rows, kRows));
  params.column_tiles = static_cast<int>(divide_up(columns, kColumns));
  params.tiles = params.row_tiles * params.column_tiles;
  params.steps = static_cast<int>(divide_up(in, kInner));
  const auto function = kernel<T, kColumns, Epilogue>;
  WM_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  const auto blocks = static_cast<unsigned>(std::min(params.tiles, multiprocessors));
  launch(context, function, dim3(blocks), dim3(kThreads), C::kSharedBytes, params, epilogue);
}

[[nodiscard]] inline int attribute(Device device, cudaDeviceAttr which) {
  int value = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device.index));
  return value;
}

/// Whether the device runs this build's kernels, and the copy engine takes such rows.
[[nodiscard]] inline bool takes(Device device, DType dtype, std::int64_t rows, std::int64_t in, std::int64_t columns,
                                std::initializer_list<const void*> addresses) {
  if (!device.is_cuda() || !is_16bit(dtype) || rows < 1 || in % 8 != 0 || columns % 8 != 0) return false;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (std::max({rows, in, columns}) >= kMost) return false;
  if (divide_up(rows, kRows) * divide_up(columns, 128) >= kMost) return false;
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  }
  return attribute(device, cudaDevAttrComputeCapabilityMajor) == 9 &&
         attribute(device, cudaDevAttrComputeCapabilityMinor) == 0;
}

/// Calls run.operator()<T, kColumns>(multiprocessors) on the context's device: T is of `dtype`, kColumns that of the
/// tile widths which a layer's products take least time with: rounds of all multiprocessors times what one takes, which
/// is its columns and, in the same measure, its beginning and epilogue.
template <class Run>
void with_kernel(const Context& context, DType dtype, std::int64_t rows, std::int64_t columns, const Run& run) {
  const DeviceGuard guard(context.device());
  const int multiprocessors = attribute(context.device(), cudaDevAttrMultiProcessorCount);
  const std::int64_t row_tiles = divide_up(rows, kRows);
  const auto cost = [&](int width) {
    return divide_up(row_tiles * divide_up(columns, width), multiprocessors) * (width + 16);
  };
  const std::int64_t least = std::min({cost(160), cost(192), cost(256)});
  const auto run_with = [&]<int kColumns>() {
    dtype == DType::bf16 ? run.template operator()<__nv_bfloat16, kColumns>(multiprocessors)
                         : run.template operator()<__half, kColumns>(multiprocessors);
  };
  if (cost(160) == least) {
    run_with.template operator()<160>();
  } else if (cost(192) == least) {
    run_with.template operator()<192>();
  } else {
    run_with.template operator()<256>();
  }
  check_launch();
}

}  // namespace warpmeter::layers::cuda::linear_sm90
