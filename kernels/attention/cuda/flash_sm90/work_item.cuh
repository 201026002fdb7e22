#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/params.hpp"

/// What the warpgroups of a block hand each other: work items, and places in rings of stages.
namespace warpmeter::attention::flash_sm90 {

/// A tile of queries of one head, as the producer hands it on.
struct WorkItem {
  int first_row;  ///< when causal maybe negative, a multiple of 64: ForwardParams::row_shift
  int blocks;     ///< key blocks of which some row of the tile sees a key; -1: no item is left
  int batch, head;

  template <class Config>
  static __device__ __forceinline__ WorkItem make(const ForwardParams& params, int item) {
    WorkItem work;
    int batch_head, tile;
    if (!Config::kCausal || item < params.mixed_heads * params.tiles) {
      batch_head = item / params.tiles;
      tile = item - batch_head * params.tiles;
      if constexpr (Config::kCausal) tile = params.tiles - 1 - tile;
    } else {
      const int rest = item - params.mixed_heads * params.tiles;
      const int heads = params.heads - params.mixed_heads;
      const int order = rest / heads;
      batch_head = params.mixed_heads + rest - order * heads;
      tile = params.tiles - 1 - order;
    }
    work.batch = batch_head / params.num_heads;
    work.head = batch_head - work.batch * params.num_heads;
    work.first_row = tile * Config::kBlockM - (Config::kCausal ? params.row_shift : 0);
    work.blocks = blocks_seen<Config>(params, work.first_row + Config::kBlockM);
    return work;
  }

  /// Keys, and key blocks, that the rows before `end_row` see.
  template <class Config>
  static __device__ __forceinline__ int keys_seen(const ForwardParams& params, int end_row) {
    if constexpr (!Config::kCausal) return params.kv_len;
    return max(0, min(params.kv_len, min(end_row, params.seq_len) + (params.kv_len - params.seq_len)));
  }
  template <class Config>
  static __device__ __forceinline__ int blocks_seen(const ForwardParams& params, int end_row) {
    return (keys_seen<Config>(params, end_row) + Config::kBlockN - 1) / Config::kBlockN;
  }
  /// Key blocks that `row`, and with it all that follow, sees whole.
  template <class Config>
  static __device__ __forceinline__ int blocks_whole(const ForwardParams& params, int row) {
    int keys = params.kv_len;
    if constexpr (Config::kCausal) keys = max(0, min(keys, row + 1 + (params.kv_len - params.seq_len)));
    return keys / Config::kBlockN;
  }
};

/// A place in a ring of stages and the parity of its round, in one register.
template <int kStages>
struct RingPosition {
  std::uint32_t place = 0;  ///< in two rounds
  [[nodiscard]] __device__ __forceinline__ std::uint32_t stage() const {
    return place < kStages ? place : place - kStages;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t phase() const { return place < kStages ? 0 : 1; }
  [[nodiscard]] __device__ __forceinline__ RingPosition next() const {
    return {place + 1 == 2 * kStages ? 0 : place + 1};
  }
};

}  // namespace warpmeter::attention::flash_sm90
