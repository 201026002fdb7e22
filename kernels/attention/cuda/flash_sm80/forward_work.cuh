#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/attention/cuda/flash_sm80/tile.cuh"

/// Which query tile a forward block has, and which key tiles its rows see.
namespace warpmeter::attention::flash_sm80 {

/// What a thread block works on. It lives in shared memory, written once by thread 0, because the loop needs its
/// registers: most of this is read once a tile or at the end only.
struct ForwardWork {
  std::int64_t batch, head;
  std::int64_t first_query;
  const void* last_keys;  // row 0 of the last key tile that is visible to some row
  const void* last_values;
  int query_rows;    // of the query tile, 1..kRowsM
  int key_rows;      // of the last key tile, 1..kRowsN
  int tiles;         // visible key tiles
  int masked_tiles;  // the last of them that some row does not see in full
  int diagonal;      // row r of the query tile sees keys [0, diagonal + r) of the last key tile
};

/// Params: ForwardParams, or BackwardParams for what a backward does by query tiles.
template <class T, class Params>
__device__ __forceinline__ ForwardWork forward_work(const Params& params, int rows_m, int rows_n) {
  const Shape& shape = params.shape;
  const WorkItem item = work_item(params.schedule);
  ForwardWork work;
  work.batch = quotient(item.head, shape.num_heads);
  work.head = item.head - work.batch * shape.num_heads;
  work.first_query = item.tile * rows_m;
  work.query_rows = at_most(shape.seq_len - work.first_query, rows_m);
  std::int64_t keys_seen = shape.kv_len, keys_seen_by_all = shape.kv_len;
  if (shape.causal) {
    keys_seen_by_all = work.first_query + 1 + shape.kv_len - shape.seq_len;
    keys_seen = max(std::int64_t{0}, keys_seen_by_all + work.query_rows - 1);
  }
  work.tiles = static_cast<int>((keys_seen + rows_n - 1) / rows_n);
  work.masked_tiles = work.tiles - static_cast<int>(max(std::int64_t{0}, keys_seen_by_all) / rows_n);
  const std::int64_t first_key = static_cast<std::int64_t>(max(work.tiles - 1, 0)) * rows_n;
  work.key_rows = at_most(shape.kv_len - first_key, rows_n);
  work.diagonal = shape.causal ? static_cast<int>(max(keys_seen_by_all - first_key, -std::int64_t{rows_m})) : rows_n;
  const std::int64_t kv_head = quotient(work.head * shape.num_kv_heads, shape.num_heads);
  work.last_keys = row_address<T>(params.k, work.batch, kv_head, first_key);
  work.last_values = row_address<T>(params.v, work.batch, kv_head, first_key);
  return work;
}

}  // namespace warpmeter::attention::flash_sm80
