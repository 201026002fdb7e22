#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/ptx/barrier.cuh"

/// Which (query head, query tile) pairs a key block works through, in which order, and who may add to dQ when.
namespace warpmeter::attention::flash_sm80 {

/// What a thread block of the key-block kernels works on; in shared memory, written once by thread 0.
struct BackwardWork {
  std::int64_t batch, kv_head;
  std::int64_t first_head;  // first query head of the group
  std::int64_t first_key;
  std::int64_t key_tile, key_tiles;
  std::int64_t offset;  // query i sees keys up to i + offset when causal: kv_len - seq_len
  int key_rows;         // of the key tile, 1..kRowsN
  int query_tiles;
  int first_tile;  // the first query tile that sees a key of this block
  int rotation;    // the walk starts so many tiles after first_tile and wraps
  int group;       // query heads
};

/// A step of the walk: head by head, tile by tile.
struct QueryStep {
  int index;  // 0, 1, ...
  int head;   // in the group
  int tile;
};

__device__ __forceinline__ BackwardWork backward_work(const BackwardParams& params, int rows_m, int rows_n) {
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  BackwardWork work;
  work.batch = quotient(item.head, shape.num_kv_heads);
  work.kv_head = item.head - work.batch * shape.num_kv_heads;
  work.group = static_cast<int>(quotient(shape.num_heads, shape.num_kv_heads));
  work.first_head = work.kv_head * work.group;
  work.key_tile = item.tile;
  work.key_tiles = params.schedule.tiles;
  work.first_key = item.tile * rows_n;
  work.key_rows = at_most(shape.kv_len - work.first_key, rows_n);
  work.offset = shape.kv_len - shape.seq_len;
  work.query_tiles = static_cast<int>((shape.seq_len + rows_m - 1) / rows_m);
  work.first_tile = 0;
  // The last query sees every key, so there is always a tile.
  if (shape.causal) work.first_tile = static_cast<int>(max(std::int64_t{0}, work.first_key - work.offset) / rows_m);
  // Blocks of one head that run together would all add to the same tile of dQ at the same time.
  work.rotation = 0;
  if (!shape.causal && !params.deterministic) {
    work.rotation = static_cast<int>(item.tile * (rows_n / rows_m) % work.query_tiles);
  }
  return work;
}

__device__ __forceinline__ QueryStep first_step(const BackwardWork& work) {
  return {0, 0, work.first_tile + work.rotation};
}

/// Past the last step: head == group.
__device__ __forceinline__ QueryStep next_step(const BackwardWork& work, const QueryStep& step) {
  QueryStep next = {step.index + 1, step.head, step.tile + 1};
  if (next.tile == work.query_tiles) next.tile = work.first_tile;
  if (next.tile == work.first_tile + work.rotation) ++next.head;
  return next;
}

__device__ __forceinline__ bool finished(const BackwardWork& work, const QueryStep& step) {
  return step.head == work.group;
}

/// Key r of the block is visible to query c of the step's tile when r <= diagonal + c; at least rows_n where all are.
__device__ __forceinline__ int diagonal_of(const Shape& shape, const BackwardWork& work, const QueryStep& step,
                                           int rows_m, int rows_n) {
  if (!shape.causal) return rows_n;
  return at_most(static_cast<std::int64_t>(step.tile) * rows_m + work.offset - work.first_key, rows_n);
}

/// Index of the step's query tile among (batch, query head, tile).
__device__ __forceinline__ std::int64_t query_tile_index(const Shape& shape, const BackwardWork& work,
                                                         const QueryStep& step) {
  return (work.batch * shape.num_heads + work.first_head + step.head) * work.query_tiles + step.tile;
}

/// Turns on the query tiles of dQ: key blocks add in a fixed order, so that the sums have the same bits on every run.
/// A counter for each query tile says how many blocks have added.
///
/// Non-causal: key block j is the j-th; all start with the first query tile and follow each other a step apart.
/// Causal: from the block at the diagonal down to block 0. Block j starts with the tile at its diagonal, where it is
/// the first, and comes to the next one a step after block j + 1 was there: running blocks never wait for long.
/// A block waits only for blocks that come earlier in the launch order, so there is no deadlock. Should a counter be
/// wrong all the same, the wait ends in a trap, which the host sees as a failed launch, and not in a hang.
struct DqTurns {
  int* turns;
  bool active;  // in the one thread that waits and passes on

  __device__ __forceinline__ static int turn_of(const Shape& shape, const BackwardWork& work, int tile, int rows_m,
                                                int rows_n) {
    if (!shape.causal) return static_cast<int>(work.key_tile);
    const std::int64_t last_key = static_cast<std::int64_t>(tile) * rows_m + rows_m - 1 + work.offset;
    return static_cast<int>(min(work.key_tiles - 1, last_key / rows_n) - work.key_tile);
  }

  /// Before the block barrier behind which the block adds to the step's tile.
  __device__ __forceinline__ void wait(const Shape& shape, const BackwardWork& work, const QueryStep& step, int rows_m,
                                       int rows_n) const {
    if (!active) return;
    const int* counter = turns + query_tile_index(shape, work, step);
    const int turn = turn_of(shape, work, step.tile, rows_m, rows_n);
    if (ptx::load_acquire(counter) == turn) return;
    const std::uint64_t start_ns = ptx::global_timer_ns();
    while (ptx::load_acquire(counter) != turn) {
      if (ptx::global_timer_ns() - start_ns > kLongestWaitNs) __trap();
      __nanosleep(20);
    }
  }

  /// A turn comes after some steps of microseconds each; debugging tools make that thousands of times longer.
  static constexpr std::uint64_t kLongestWaitNs = 20'000'000'000;

  /// After the block barrier behind which the block's additions to the step's tile are.
  __device__ __forceinline__ void pass_on(const Shape& shape, const BackwardWork& work, const QueryStep& step) const {
    if (!active) return;
    int* counter = turns + query_tile_index(shape, work, step);
    __threadfence();
    ptx::store_release(counter, ptx::load_acquire(counter) + 1);
  }
};

}  // namespace warpmeter::attention::flash_sm80
