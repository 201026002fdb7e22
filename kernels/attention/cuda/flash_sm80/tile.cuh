#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/shared_address.cuh"

/// Tiles of 16-bit operands in shared memory and their way from and to global memory.
///
/// A tile is rows x kHeadDim elements with a row pitch of kHeadDim + 8. The 16 extra bytes make the pitch an odd number
/// of 16-byte units, so the eight rows of an ldmatrix fall into different banks: the effect of an XOR swizzle, with
/// addresses that are a base plus constants.
namespace warpmeter::attention::flash_sm80 {

constexpr int kWarpSize = 32;
constexpr int kPadElements = 8;
constexpr int kElementsPerCopy = 8;  // of 2 bytes: one 16-byte copy

template <int kHeadDim>
constexpr int kPitch = kHeadDim + kPadElements;

/// Lanes that share one row of a copy: the 16-byte pieces of a row, rounded up to a power of two so that a thread's
/// column is the same in every row.
__host__ __device__ constexpr int copy_lanes_per_row(int head_dim) {
  int lanes = 1;
  while (lanes * kElementsPerCopy < head_dim) lanes *= 2;
  return lanes;
}

/// min(rows, most) as an int, for rows that may not fit one.
__device__ __forceinline__ int at_most(std::int64_t rows, int most) {
  return rows < most ? static_cast<int>(rows) : most;
}

/// The first element of `row` in a (batch, heads, rows, head_dim) operand.
template <class T>
__device__ __forceinline__ const T* row_address(const ConstTensorView& view, std::int64_t batch, std::int64_t head,
                                                std::int64_t row) {
  return static_cast<const T*>(view.data) + batch * view.batch_stride + head * view.head_stride + row * view.row_stride;
}
template <class T>
__device__ __forceinline__ T* row_address(const TensorView& view, std::int64_t batch, std::int64_t head,
                                          std::int64_t row) {
  return static_cast<T*>(view.data) + batch * view.batch_stride + head * view.head_stride + row * view.row_stride;
}

/// Copies of a tile of kRows rows by the first kThreads threads of a block. kVector: rows are 16-byte aligned and
/// head_dim is a multiple of 8. A thread copies one column of 8 elements in every kRowsPerPass-th row.
template <class T, int kHeadDim, int kRows, int kThreads, bool kVector>
struct TileCopy {
  static constexpr int kLanes = copy_lanes_per_row(kHeadDim);
  static constexpr int kRowsPerPass = kThreads / kLanes;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(sizeof(T) == 2 && kThreads % kLanes == 0 && kRows % kRowsPerPass == 0);

  __device__ static __forceinline__ int first_row(int thread) { return thread / kLanes; }
  __device__ static __forceinline__ int column(int thread) { return thread % kLanes * kElementsPerCopy; }
  __device__ static __forceinline__ std::uint32_t shared_offset(int thread) {
    return (first_row(thread) * kPitch<kHeadDim> + column(thread)) * sizeof(T);
  }

  /// Starts the copy of `rows` rows (0..kRows) of `head_dim` elements into the tile; `source` is row 0. The rest of the
  /// tile becomes zero and is not read from global memory, so what lies behind the operand cannot leak in. With kVector
  /// the copy is asynchronous and the caller commits it; otherwise it is done when the function returns.
  __device__ static __forceinline__ void load(std::uint32_t tile, const T* source, std::int64_t row_stride, int rows,
                                              int head_dim, int thread) {
    if (kLanes * kElementsPerCopy > kHeadDim && column(thread) >= kHeadDim) return;
    source += first_row(thread) * row_stride + column(thread);
    const std::uint32_t destination = tile + shared_offset(thread);
    if constexpr (kVector) {
      const int rows_left = column(thread) < head_dim ? rows - first_row(thread) : 0;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        ptx::cp_async_16(destination + pass * kRowsPerPass * kPitch<kHeadDim> * sizeof(T), source,
                         pass * kRowsPerPass < rows_left ? 16 : 0);
        source += kRowsPerPass * row_stride;
      }
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const auto* bits = reinterpret_cast<const std::uint16_t*>(source);
        std::uint32_t packed[4] = {0, 0, 0, 0};
        if (first_row(thread) + pass * kRowsPerPass < rows) {
#pragma unroll
          for (int i = 0; i < kElementsPerCopy; ++i) {
            if (column(thread) + i < head_dim) packed[i / 2] |= static_cast<std::uint32_t>(bits[i]) << (16 * (i % 2));
          }
        }
        ptx::store_shared_v4(destination + pass * kRowsPerPass * kPitch<kHeadDim> * sizeof(T), packed[0], packed[1],
                             packed[2], packed[3]);
        source += kRowsPerPass * row_stride;
      }
    }
  }

  /// Writes the first `rows` rows and `head_dim` columns of a tile to global memory; `destination` is
  /// the tile's start. The tile's writes by other threads must be behind a barrier.
  __device__ static __forceinline__ void store(std::uint32_t tile, T* destination, std::int64_t row_stride, int rows,
                                               int head_dim, int thread) {
    if (column(thread) >= head_dim) return;
    destination += first_row(thread) * row_stride + column(thread);
    std::uint32_t source = tile + shared_offset(thread);
#pragma unroll 4
    for (int row = first_row(thread); row < rows; row += kRowsPerPass) {
      std::uint32_t r[4];
      ptx::load_shared_v4(source, r[0], r[1], r[2], r[3]);
      if constexpr (kVector) {
        *reinterpret_cast<uint4*>(destination) = make_uint4(r[0], r[1], r[2], r[3]);
      } else {
        auto* bits = reinterpret_cast<std::uint16_t*>(destination);
#pragma unroll
        for (int i = 0; i < kElementsPerCopy; ++i) {
          if (column(thread) + i < head_dim) bits[i] = static_cast<std::uint16_t>(r[i / 2] >> (16 * (i % 2)));
        }
      }
      source += kRowsPerPass * kPitch<kHeadDim> * sizeof(T);
      destination += kRowsPerPass * row_stride;
    }
  }
};

/// a / b for a >= 0, b > 0. A 64-bit division takes a hundred instructions and a thread block begins with several of
/// them one after another; numbers that need it are rare.
__device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// A thread block's piece of work.
struct WorkItem {
  std::int64_t head;  ///< batch * heads + head
  std::int64_t tile;
};

__device__ __forceinline__ WorkItem work_item(const Schedule& schedule) {
  const std::int64_t index = schedule.first + blockIdx.x;
  const std::int64_t group = quotient(index, schedule.heads_per_group * schedule.tiles);
  const std::int64_t first_head = group * schedule.heads_per_group;
  const std::int64_t rest = index - first_head * schedule.tiles;
  const std::int64_t left = schedule.heads - first_head;
  const std::int64_t group_heads = left < schedule.heads_per_group ? left : schedule.heads_per_group;
  WorkItem item;
  if (schedule.tiles_outer) {
    item.tile = quotient(rest, group_heads);
    item.head = first_head + (rest - item.tile * group_heads);
  } else {
    const std::int64_t head = quotient(rest, schedule.tiles);
    item.head = first_head + head;
    item.tile = rest - head * schedule.tiles;
  }
  if (schedule.descending) item.tile = schedule.tiles - 1 - item.tile;
  return item;
}

}  // namespace warpmeter::attention::flash_sm80
