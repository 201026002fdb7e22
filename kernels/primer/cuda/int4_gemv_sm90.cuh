#pragma once

#include "kernels/primer/cuda/int4_digits.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"

/// int4_matmul with one column on Hopper: z = a y, bound by reading the weights.
///
///   grid   a block stays on each multiprocessor and goes through tiles of 16 rows, every gridDim.x-th
///   warps  16 multiply: each has 128 bytes of the 16 rows of a stage; their sums meet at a tile's end. One more loads
///   ring   up to 8 stages of 16 rows of 2 KB. Barriers of a stage: `full`, completed by the copies; `empty`, by the 16
///          warps that have multiplied. Whatever is under way is in the copy engine's hands: with loads into registers
///          the compiler gave all of them one scoreboard, and waiting for the first was waiting for the last
///   shared y as digits (4 bytes a number), then the ring
namespace warpmeter::primer::int4::gemv_sm90 {

constexpr int kWarps = 16, kThreads = 32 * (kWarps + 1);
constexpr int kStageRow = 128 * kWarps, kPitch = kStageRow + 64;  // so that rows g and g + 1 are in different banks
constexpr int kStageBytes = kTileRows * kPitch, kMostStages = 8;

template <class T>
__global__ void __launch_bounds__(kThreads, 1) kernel(Weights<T> a, const T* y, T* z, int tiles, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  __shared__ TileResults<kWarps> results;
  __shared__ std::uint64_t barriers[2][kMostStages];
  char* const ring = reinterpret_cast<char*>(memory) + DigitsOfY<T>::bytes(a.inner);
  const std::uint32_t full = ptx::shared_address(barriers[0]), empty = ptx::shared_address(barriers[1]);
  if (threadIdx.x < stages) {
    ptx::mbarrier_init(full + 8 * threadIdx.x, 1);
    ptx::mbarrier_init(empty + 8 * threadIdx.x, kWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_bytes = static_cast<int>(a.inner / 2), parts = (row_bytes + kStageRow - 1) / kStageRow;  // of a tile
  int stage = 0;
  std::uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == stages) stage = 0, parity ^= 1;
  };

  if (warp == kWarps) {  // loads: lane i has row i of the tile, or the last row there is
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const std::int64_t row = min(std::int64_t{tile} * kTileRows + lane, a.rows - 1);
      const char* const from = reinterpret_cast<const char*>(a.words + row * a.row_words);
      for (int part = 0; part < parts; ++part, advance()) {
        const int bytes = min(kStageRow, row_bytes - part * kStageRow);
        ptx::mbarrier_wait(empty + 8 * stage, parity ^ 1);  // its readers' arrivals
        if (lane == 0) ptx::mbarrier_arrive_expect(full + 8 * stage, kTileRows * bytes);
        __syncwarp();
        if (lane < kTileRows) {
          ptx::bulk_load(ptx::shared_address(ring + stage * kStageBytes + lane * kPitch), from + part * kStageRow,
                         bytes, full + 8 * stage, ptx::L2Policy::evict_first);
        }
      }
    }
    return;
  }

  DigitsOfY<T> digits(memory, a.inner);
  TileSums<T> sums(a, digits);
  sums.ask_scales(warp * 2);
  digits.fill(y, static_cast<int>(a.inner), 32 * kWarps);
  ptx::named_barrier_sync(1, 32 * kWarps);

  int turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
    for (int part = 0; part < parts; ++part, advance()) {
      const int piece = (part * kWarps + warp) * 2;
      sums.take_scales(piece);
      const bool last = part + 1 == parts;
      if (last) sums.next_tile(tile + static_cast<int>(gridDim.x));
      sums.ask_scales(last ? warp * 2 : piece + 2 * kWarps);
      ptx::mbarrier_wait(full + 8 * stage, parity);  // the copies
      if (piece * kPiece < a.inner) {
        const char* const from = ring + stage * kStageBytes + lane / 4 * kPitch + warp * 128 + lane % 4 * 16;
        uint4 words[2][2];
#pragma unroll
        for (int at = 0; at < 4; ++at) {
          words[at / 2][at % 2] = *reinterpret_cast<const uint4*>(from + at / 2 * 64 + at % 2 * 8 * kPitch);
        }
        sums.template add<0>(words[0], piece);
        sums.template add<1>(words[1], piece);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(empty + 8 * stage);
    }
    results.deposit(turn, sums.finish());
    ptx::named_barrier_sync(1, 32 * kWarps);
    results.store(turn, tile, a.rows, z);
  }
#endif
}

/// Stages that there is room for beside y.
template <class T>
int stages_for(std::int64_t inner, StreamView stream) {
  int limit = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  constexpr int kStatic = sizeof(TileResults<kWarps>) + 2 * kMostStages * 8;
  const std::int64_t room = limit - kStatic - 128 - DigitsOfY<T>::bytes(inner);
  return static_cast<int>(std::clamp<std::int64_t>(room / kStageBytes, 0, kMostStages));
}

/// Whether kernel() takes these sizes on the stream's device: whole pieces in rows and groups.
template <class T>
bool takes(const Problem& p, StreamView stream) {
  int major = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device.index));
  return major == 9 && p.cols == 1 && p.inner % kPiece == 0 && p.group_size % kPiece == 0 && p.rows < (1 << 30) &&
         stages_for<T>(p.inner, stream) >= 2;
}

template <class T>
void launch(const Weights<T>& a, const T* y, T* z, StreamView stream) {
  const int stages = stages_for<T>(a.inner, stream);
  const auto bytes = static_cast<int>(DigitsOfY<T>::bytes(a.inner)) + stages * kStageBytes;
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto tiles = static_cast<int>(ceil_div(a.rows, kTileRows));
  kernel<T><<<static_cast<unsigned>(std::min(tiles, multiprocessors(stream))), kThreads,
              static_cast<std::size_t>(bytes), handle(stream)>>>(a, y, z, tiles, stages);
  check_launch();
}

}  // namespace warpmeter::primer::int4::gemv_sm90
