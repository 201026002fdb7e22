#pragma once

#include <type_traits>

#include "kernels/primer/cuda/int4_digits.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"

/// int4_matmul with one column on Hopper: z = a y, bound by reading the weights.
///
///   grid   a block on each multiprocessor has as many rows as the others, a tile of 8 or 16 at a time
///   warps  16 multiply: each has one or two times 256 numbers of a part of `inner`. One more loads
///   rings  of stages, a part of a tile's weights each, up to 32 KB; of a tile's scales and offsets, which lie
///   together.
///          Barriers: `full`, completed by the copies; `empty`, by the warps that have multiplied. Whatever is under
///          way is in the copy engine's hands: with loads into registers the compiler gave all of them one scoreboard,
///          and waiting for the first was waiting for the last
///   shared y as digits (4 bytes a number), the rings, and the warps' sums of up to 256 rows, which meet at their end
namespace warpmeter::primer::int4::gemv_sm90 {

constexpr int kWarps = 16, kThreads = 32 * (kWarps + 1);
constexpr int kMostStages = 8, kScaleStages = 4, kMostRows = 256;

/// How `inner` is dealt out, and how memory is.
struct Plan {
  int parts, part_bytes;  ///< of a row
  int tile_rows, rows_of_block, blocks;
  int stages;
  bool whole;  ///< rows in copies

  [[nodiscard]] __host__ __device__ int stage_bytes() const { return tile_rows * part_bytes; }
};

struct Barriers {
  std::uint64_t full[kMostStages], empty[kMostStages], scales_full[kScaleStages], scales_empty[kScaleStages];
};

/// A place in a ring and how often it has been gone round.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// Bytes of the scales and of the offsets of some rows; whole octets are whole copies.
template <class T>
__host__ __device__ int scale_bytes(const Weights<T>& a, int rows) {
  return rows * static_cast<int>(a.groups * static_cast<std::int64_t>(sizeof(T)));
}
template <class T>
__host__ __device__ int offset_bytes(const Weights<T>& a, int rows) {
  return rows * static_cast<int>(a.offset_words * 4);
}

template <class T, int kPairs, int kTileOctets, bool kOnePart>
__global__ void __launch_bounds__(kThreads, 1) kernel(Weights<T> a, const T* y, T* z, Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kTile = kTileOctets * kOctet;
  extern __shared__ __align__(128) uint4 lines[];  // copies to the middle of a line took a quarter longer
  __shared__ float results[kMostRows / kOctet][kWarps][kOctet];
  __shared__ Barriers barriers;
  char* const ring = reinterpret_cast<char*>(lines) + DigitsOfY<T>::bytes(a.inner);
  char* const scale_ring = ring + plan.stages * plan.stage_bytes();
  const int of_scales = scale_bytes(a, kTile), of_both = of_scales + offset_bytes(a, kTile);
  const std::uint32_t full = ptx::shared_address(barriers.full), empty = ptx::shared_address(barriers.empty);
  const std::uint32_t scales_full = ptx::shared_address(barriers.scales_full);
  const std::uint32_t scales_empty = ptx::shared_address(barriers.scales_empty);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t begin = blockIdx.x * std::int64_t{plan.rows_of_block};
  const std::int64_t end = min(begin + plan.rows_of_block, a.rows);
  if (threadIdx.x < plan.stages + kScaleStages) {
    const int i = static_cast<int>(threadIdx.x) - plan.stages;
    ptx::mbarrier_init(i < 0 ? full + 8 * threadIdx.x : scales_full + 8 * i, 1);
    ptx::mbarrier_init(i < 0 ? empty + 8 * threadIdx.x : scales_empty + 8 * i, 32 * kWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();

  Turn turn, scale_turn;
  if (warp == kWarps) {  // loads
    const std::int64_t row_bytes = a.inner / 2;
    for (std::int64_t row = begin; row < end; row += kTile) {
      const int rows = static_cast<int>(min(std::int64_t{kTile}, end - row));
      ptx::mbarrier_wait(scales_empty + 8 * scale_turn.stage, scale_turn.parity ^ 1);
      if (lane == 0) {
        const std::uint32_t barrier = scales_full + 8 * scale_turn.stage;
        const std::uint32_t to = ptx::shared_address(scale_ring + scale_turn.stage * of_both);
        ptx::mbarrier_arrive_expect(barrier, scale_bytes(a, rows) + offset_bytes(a, rows));
        ptx::bulk_load(to, a.scales + row * a.groups, scale_bytes(a, rows), barrier, ptx::L2Policy::evict_first);
        ptx::bulk_load(to + of_scales, a.offsets + row * a.offset_words, offset_bytes(a, rows), barrier,
                       ptx::L2Policy::evict_first);
      }
      __syncwarp();
      scale_turn.advance(kScaleStages);
      const char* const words = reinterpret_cast<const char*>(a.words) + row * row_bytes;
      for (int part = 0; part < plan.parts; ++part, turn.advance(plan.stages)) {
        const std::uint32_t to = ptx::shared_address(ring + turn.stage * plan.stage_bytes());
        const std::uint32_t barrier = full + 8 * turn.stage;
        const int at = part * plan.part_bytes, bytes = min(plan.part_bytes, static_cast<int>(row_bytes) - at);
        ptx::mbarrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
        if (lane == 0) ptx::mbarrier_arrive_expect(barrier, rows * bytes);
        __syncwarp();
        if (kOnePart) {  // rows lie together
          if (lane == 0) ptx::bulk_load(to, words, rows * bytes, barrier, ptx::L2Policy::evict_first);
        } else if (lane < rows) {
          ptx::bulk_load(to + lane * plan.part_bytes, words + lane * row_bytes + at, bytes, barrier,
                         ptx::L2Policy::evict_first);
        }
        __syncwarp();
      }
    }
    return;
  }

  DigitsOfY<T> digits(lines, a.inner);
  digits.fill(y, static_cast<int>(a.inner), 32 * kWarps);
  ptx::named_barrier_sync(1, 32 * kWarps);
  const int pairs = static_cast<int>(a.inner / (2 * kPiece));
  for (int pair = warp; pair < pairs; pair += kWarps) digits.add_up(pair);
  ptx::named_barrier_sync(1, 32 * kWarps);
  using Sums = OctetSums<T, kPairs, kTileOctets>;
  Sums sums(a, digits);
  typename Sums::Factors factors[kPairs];
  if constexpr (kOnePart) sums.load(factors, warp * kPairs);  // they stay the same

  std::int64_t first = begin;  // row in `results`
  const auto flush = [&](std::int64_t last) {
    ptx::named_barrier_sync(2, 32 * kWarps);
    for (int i = threadIdx.x; i < last - first; i += 32 * kWarps) {
      float sum = 0.0f;
#pragma unroll
      for (int of = 0; of < kWarps; ++of) sum += results[i / kOctet][of][i % kOctet];
      z[first + i] = from_float<T>(sum);
    }
    first = last;
    ptx::named_barrier_sync(2, 32 * kWarps);
  };
  for (std::int64_t row = begin; row < end; row += kTile) {
    const char* const scales = scale_ring + scale_turn.stage * of_both;
    ptx::mbarrier_wait(scales_full + 8 * scale_turn.stage, scale_turn.parity);
    // Every warp follows every stage: a barrier's parity tells one phase from the next, not from the one after that.
    for (int part = 0; part < plan.parts; ++part, turn.advance(plan.stages)) {
      const int pair = (part * kWarps + warp) * kPairs;
      if constexpr (!kOnePart) sums.load(factors, pair);
      ptx::mbarrier_wait(full + 8 * turn.stage, turn.parity);
      const auto release = [&] { ptx::mbarrier_arrive(empty + 8 * turn.stage); };  // all lanes, so that checkers see it
      if (pair < pairs) {
        sums.add({ring + turn.stage * plan.stage_bytes() + warp * kPairs * kPairBytes, plan.part_bytes,
                  reinterpret_cast<const T*>(scales), reinterpret_cast<const std::uint32_t*>(scales + of_scales)},
                 factors, pair, release);
      } else {
        release();
      }
    }
    ptx::mbarrier_arrive(scales_empty + 8 * scale_turn.stage);
    scale_turn.advance(kScaleStages);
    sums.finish(results[(row - first) / kOctet][warp], kWarps * kOctet);
    if (row + kTile - first == kMostRows) flush(min(row + kTile, end));
  }
  flush(end);
#endif
}

template <class T>
std::int64_t shared_bytes(const Weights<T>& a, const Plan& plan) {
  return DigitsOfY<T>::bytes(a.inner) + plan.stages * plan.stage_bytes() +
         kScaleStages * (scale_bytes(a, plan.tile_rows) + offset_bytes(a, plan.tile_rows));
}

/// Pairs of a warp in a part of a row: 1 or 2.
inline int pairs_of_warp(std::int64_t inner) {
  return inner <= kWarps * 2 * kPiece ? 1 : 2;
}
constexpr int octets_of_tile(int pairs) {
  return pairs == 1 ? 2 : 1;
}

/// stages is 0 where they do not fit.
template <class T>
Plan make_plan(const Weights<T>& a, StreamView stream) {
  const int pairs = pairs_of_warp(a.inner), part_bytes = kWarps * pairs * kPairBytes;
  Plan plan{};
  plan.parts = static_cast<int>(ceil_div(a.inner / 2, part_bytes));
  plan.part_bytes = static_cast<int>(std::min<std::int64_t>(a.inner / 2, part_bytes));
  plan.tile_rows = octets_of_tile(pairs) * kOctet;
  // Copies begin at multiples of 16 bytes: in the scales, too, any row does, or each octet.
  const std::int64_t grain = scale_bytes(a, 1) % 16 == 0 && offset_bytes(a, 1) % 16 == 0 ? 1 : kOctet;
  const std::int64_t most = std::min<std::int64_t>(ceil_div(a.rows, kOctet), multiprocessors(stream));
  plan.rows_of_block = static_cast<int>(ceil_div(ceil_div(a.rows, most), grain) * grain);
  plan.blocks = static_cast<int>(ceil_div(a.rows, plan.rows_of_block));
  plan.whole = a.rows % grain == 0;
  int limit = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  constexpr int kStatic = kMostRows * kWarps * 4 + static_cast<int>(sizeof(Barriers));
  const std::int64_t room = limit - kStatic - 128 - shared_bytes(a, plan);
  // More than three tiles under way are slower: 8192 x 8192 takes 14.2 us with 96 KB and 14.8 with 160.
  plan.stages =
      static_cast<int>(std::clamp<std::int64_t>(room / plan.stage_bytes(), 0, std::min(kMostStages, 3 * plan.parts)));
  return plan;
}

/// Whether kernel() takes these sizes on the stream's device: whole pairs of pieces in rows, pieces in groups, and
/// whole octets where rows of scales are not whole pieces of 16 bytes.
template <class T>
bool takes(const Problem& p, const Weights<T>& a, StreamView stream) {
  int major = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device.index));
  if (major != 9 || p.cols != 1 || p.inner % (2 * kPiece) != 0 || p.group_size % kPiece != 0 || p.rows >= 1 << 30) {
    return false;
  }
  const Plan plan = make_plan(a, stream);
  return plan.whole && plan.stages >= 2;
}

template <class T>
void launch(const Weights<T>& a, const T* y, T* z, StreamView stream) {
  const Plan plan = make_plan(a, stream);
  const auto bytes = static_cast<int>(shared_bytes(a, plan));
  const auto start = [&](auto pairs, auto one_part) {
    auto* const chosen = kernel<T, pairs(), octets_of_tile(pairs()), one_part()>;
    WM_CUDA_CHECK(cudaFuncSetAttribute(chosen, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    chosen<<<static_cast<unsigned>(plan.blocks), kThreads, static_cast<std::size_t>(bytes), handle(stream)>>>(a, y, z,
                                                                                                              plan);
    check_launch();
  };
  if (pairs_of_warp(a.inner) == 1) return start(Int<1>(), std::true_type());
  plan.parts == 1 ? start(Int<2>(), std::true_type()) : start(Int<2>(), std::false_type());
}

}  // namespace warpmeter::primer::int4::gemv_sm90
