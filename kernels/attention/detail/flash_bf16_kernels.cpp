// The CPU flash attention on bf16 operands without widening them, compiled for AVX512_BF16 and for AMX. P and dS are
// rounded to bf16 for the products that take them, as on GPUs; sums, softmax and statistics are fp32.
//
// Forward: scores are kept transposed, (keys, queries), as in flash_forward_kernels.cpp, and so is the output,
// O^T = V^T P^T: then K is A of its product as it lies, two rows of P^T become rows of pairs without a shuffle across
// rows, and both the softmax and the rescaling run along the lanes.
//
// Backward, a key block: scores are (queries, keys). S = Q K^T and dP = dO V^T have their packed operand packed once;
// dV^T = dO^T P and dK^T = Q^T dS take pairs of rows of P and dS; dQ = dS K takes dS as rows.

#include "kernels/attention/detail/flash_bf16.hpp"
#include "kernels/attention/detail/flash_turns.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using flash_detail::BackwardHead;
using flash_detail::DeltaBlock;
using flash_detail::ForwardBlock;
using flash_detail::kBackwardQueryBlock;
using flash_detail::KeyBlock;
using flash_detail::kKeyBlock;
using flash_detail::kQueryBlock;
using flash_detail::QueryGradientBlock;
using flash_detail::Shape;

constexpr float kMinusInfinity = -__builtin_inff();

// --- forward -------------------------------------------------------------------------------------------------------

constexpr Index kScoreStride = kPanel + kWidth;

/// What a forward block works in.
struct ForwardWorkspace {
  Index depth, columns;  ///< head_dim padded as depth, as rows of V^T
  Word *queries_t, *pairs;
  Bf16 *values_t, *keys;
  float *scores, *output_t, *maximum, *sum, *correction;
  Index total;

  explicit ForwardWorkspace(const Shape& shape, float* scratch = nullptr)
      : depth(round_up(shape.head_dim, kDepthStep)), columns(round_up(shape.head_dim, kTile)) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = round_up(min_of(kKeyBlock, shape.kv_len), kDepthStep);
    Pieces pieces(scratch);
    queries_t = pieces.take<Word>(rows * depth / 2);
    keys = pieces.take<Bf16>(keys_count * depth);
    values_t = pieces.take<Bf16>(keys_count * columns);
    scores = pieces.take<float>(keys_count * kScoreStride);
    pairs = pieces.take<Word>(keys_count / 2 * kPanel);
    output_t = pieces.take<float>(rows * columns);
    maximum = pieces.take<float>(rows);
    sum = pieces.take<float>(rows);
    correction = pieces.take<float>(rows);
    total = pieces.total();
  }
};

/// One panel of queries against `keys` scored keys: the running maximum and sum move on, `correction` becomes what the
/// earlier sums shrink by, and P^T is left in pairs of keys, zeros from `keys` to a multiple of 32. Keys from
/// seen_by_all on are hidden from the lanes where seen[lane] <= key. Returns whether any lane's maximum moved.
template <int NV>
[[gnu::noinline]] bool softmax_panel(float* __restrict scores, Index keys, Index seen_by_all,
                                     const std::int32_t* __restrict seen, float factor, float* __restrict maximum,
                                     float* __restrict sum, float* __restrict correction, Word* __restrict pairs) {
  Vec top[NV];
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) top[v] = load(maximum + v * kWidth);
  for (Index key = 0; key < seen_by_all; ++key) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) top[v] = max(top[v], load(scores + key * kScoreStride + v * kWidth));
  }
  for (Index key = seen_by_all; key < keys; ++key) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      IntVec limit;
      __builtin_memcpy(&limit, seen + v * kWidth, sizeof(limit));
      float* const at = scores + key * kScoreStride + v * kWidth;
      const Vec score = broadcast_int(static_cast<std::int32_t>(key)) < limit ? load(at) : broadcast(kMinusInfinity);
      store(at, score);
      top[v] = max(top[v], score);
    }
  }

  Vec base[NV], total[NV];
  IntVec moved{};
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    const Vec before = load(maximum + v * kWidth);
    base[v] = top[v] == broadcast(kMinusInfinity) ? Vec{} : top[v];
    const Vec shrink = exp2_probability((before - base[v]) * factor);
    moved |= before != top[v];
    store(maximum + v * kWidth, top[v]);
    store(correction + v * kWidth, shrink);
    total[v] = load(sum + v * kWidth) * shrink;
  }
  Index key = 0;
  for (; key + 2 <= keys; key += 2) {
    const float* const row = scores + key * kScoreStride;
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const Vec even = exp2_probability((load(row + v * kWidth) - base[v]) * factor);
      const Vec odd = exp2_probability((load(row + kScoreStride + v * kWidth) - base[v]) * factor);
      total[v] += even + odd;
      store_words(pairs + key / 2 * NV * kWidth + v * kWidth, interleave(narrow_two(even, odd)));
    }
  }
  for (; key < round_up(keys, kDepthStep); key += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      Vec even{};
      if (key < keys) even = exp2_probability((load(scores + key * kScoreStride + v * kWidth) - base[v]) * factor);
      total[v] += even;
      store_words(pairs + key / 2 * NV * kWidth + v * kWidth, interleave(narrow_two(even, Vec{})));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) store(sum + v * kWidth, total[v]);
  bool any = false;
  for (int i = 0; i < kWidth; ++i) any |= moved[i] != 0;
  return any;
}

/// Every row of O^T (columns, width) times the lanes' correction.
WM_INLINE void rescale(float* output_t, Index columns, Index width, const float* correction) {
  for (Index column = 0; column < columns; ++column) {
    for (Index lane = 0; lane < width; lane += kWidth) {
      float* const at = output_t + column * width + lane;
      store(at, load(at) * load(correction + lane));
    }
  }
}

void forward_block(const ForwardBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const ForwardWorkspace work(shape, block.scratch);
  const Index depth = work.depth, columns = work.columns;
  const Panels panels(vectors_of(block.rows));
  const Index lanes = panels.total * kWidth;
  const Tiles tiles;

  const Bf16* const q = static_cast<const Bf16*>(block.q.data) + block.first * block.q.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    pack_pairs_of_columns(q + row * block.q.stride, block.q.stride, min_of(width, block.rows - row), width, head_dim,
                          depth, work.queries_t + row * depth / 2, width);
  }
  for (Index i = 0; i < lanes; ++i) {
    work.maximum[i] = kMinusInfinity;
    work.sum[i] = 0;
  }
  for (Index i = 0; i < lanes * columns; ++i) work.output_t[i] = 0;

  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const Index padded_keys = round_up(key_count, kDepthStep);
    const Bf16* keys = static_cast<const Bf16*>(block.k.data) + key0 * block.k.stride;
    Index key_stride = block.k.stride;
    if (head_dim != depth || key_count % kTile != 0) {
      copy_rows(keys, block.k.stride, key_count, padded_keys, head_dim, depth, work.keys);
      keys = work.keys;
      key_stride = depth;
    }
    pack_columns(static_cast<const Bf16*>(block.v.data) + key0 * block.v.stride, block.v.stride, key_count, padded_keys,
                 head_dim, columns, work.values_t);

    for (Index p = 0; p < panels.count; ++p) {
      const Index row0 = panels.begin(p) * kWidth;
      const Index width = panels.size(p) * kWidth;
      const Index row_count = min_of(width, block.rows - row0);
      const auto seen_by = [&](Index row) {
        return clamp_of(visible_keys(shape, block.first + row0 + row) - key0, 0, key_count);
      };
      const Index seen_by_all = seen_by(0);
      const Index panel_keys = seen_by(row_count - 1);
      if (panel_keys == 0) continue;
      std::int32_t seen[kPanel];
      for (Index i = 0; i < kPanel; ++i) seen[i] = static_cast<std::int32_t>(seen_by(min_of(i, row_count - 1)));

      multiply_bf16(keys, key_stride, work.queries_t + row0 * depth / 2, width, depth, work.scores, kScoreStride,
                    round_up(panel_keys, kTile), width, false);
      bool moved = false;
      for_vectors(
          panels.size(p), [&]<int NV>() __attribute__((always_inline)) {
            moved = softmax_panel<NV>(work.scores, panel_keys, seen_by_all, seen, shape.scale * kLog2e,
                                      work.maximum + row0, work.sum + row0, work.correction + row0, work.pairs);
          });
      float* const panel_output = work.output_t + row0 * columns;
      if (moved && key0 > 0) rescale(panel_output, columns, width, work.correction + row0);
      multiply_bf16(work.values_t, padded_keys, work.pairs, width, round_up(panel_keys, kDepthStep), panel_output,
                    width, columns, width, true);
    }
  }

  for (Index row = 0; row < lanes; ++row) {
    const float total = work.sum[row];
    work.correction[row] = total == 0 ? 0 : 1 / total;
    if (row < block.rows) write_lse(block, row, work.maximum[row], total);
  }
  Bf16* const o = static_cast<Bf16*>(block.o.data) + block.first * block.o.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    write_transposed(work.output_t + row0 * columns, width, min_of(width, block.rows - row0), head_dim,
                     work.correction + row0, 1.0f, o + row0 * block.o.stride, block.o.stride);
  }
}

// --- delta ---------------------------------------------------------------------------------------------------------

/// The diagonal of dO O^T by the product that makes dP, 16 rows at a time: a query that sees one key has O = V of it,
/// and dP = delta to the last bit, so its dS is exactly 0.
void delta_block(const DeltaBlock& block) {
  constexpr Index kMaxDepth = 256;
  const Shape& shape = block.shape;
  const Index depth = round_up(shape.head_dim, kDepthStep);
  alignas(64) Bf16 d_outputs[kTile * kMaxDepth];
  alignas(64) Word outputs[kMaxDepth / 2 * kTile];
  alignas(64) float sums[kTile * kTile];
  const Tiles tiles;
  for (Index row = block.first; row < block.first + block.rows; row += kTile) {
    const Index rows = min_of(kTile, block.first + block.rows - row);
    copy_rows(static_cast<const Bf16*>(block.d_o.data) + row * block.d_o.stride, block.d_o.stride, rows, kTile,
              shape.head_dim, depth, d_outputs);
    pack_pairs_of_columns(static_cast<const Bf16*>(block.o.data) + row * block.o.stride, block.o.stride, rows, kTile,
                          shape.head_dim, depth, outputs, kTile);
    multiply_bf16(d_outputs, depth, outputs, kTile, depth, sums, kTile, kTile, kTile, false);
    for (Index i = 0; i < rows; ++i) {
      block.delta[row + i] = sums[i * kTile + i];
      write_row_lse(block, row + i);
    }
  }
}

// --- key blocks ----------------------------------------------------------------------------------------------------

/// Columns that the products for dV^T and dK^T take at once, to start at the first query that sees them.
constexpr Index kColumnChunk = 64;
/// Query rows whose scores are made at once.
constexpr Index kRowChunk = 32;

/// What a key block works in.
struct KeyWorkspace {
  Index depth, columns, keys, score_stride;
  Word *keys_t, *values_t, *key_pairs, *p_pairs, *ds_pairs;
  Bf16 *queries, *d_outputs, *queries_c, *d_outputs_c, *ds_rows;
  float *s, *dp, *dq, *dk_t, *dv_t;
  Index total;

  KeyWorkspace(const Shape& shape, Index key_block, float* scratch = nullptr)
      : depth(round_up(shape.head_dim, kDepthStep)),
        columns(round_up(shape.head_dim, kTile)),
        keys(round_up(min_of(key_block, shape.kv_len), kDepthStep)),
        score_stride(keys + kWidth) {
    const Index rows = round_up(min_of(kBackwardQueryBlock, shape.seq_len), kDepthStep);
    Pieces pieces(scratch);
    keys_t = pieces.take<Word>(keys * depth / 2);
    values_t = pieces.take<Word>(keys * depth / 2);
    key_pairs = pieces.take<Word>(keys * columns / 2);
    queries = pieces.take<Bf16>(rows * depth);
    d_outputs = pieces.take<Bf16>(rows * depth);
    queries_c = pieces.take<Bf16>(rows * columns);
    d_outputs_c = pieces.take<Bf16>(rows * columns);
    s = pieces.take<float>(kRowChunk * score_stride);
    dp = pieces.take<float>(kRowChunk * score_stride);
    p_pairs = pieces.take<Word>(rows / 2 * keys);
    ds_pairs = pieces.take<Word>(rows / 2 * keys);
    ds_rows = pieces.take<Bf16>(rows * keys);
    dq = pieces.take<float>(rows * columns);
    dk_t = pieces.take<float>(columns * keys);
    dv_t = pieces.take<float>(columns * keys);
    total = pieces.total();
  }
};

/// P and dS of two query rows over all keys: pairs of both, and dS as rows. From `computed` columns on, and where
/// seen[row] hides a column, they are 0.
WM_INLINE void score_gradient_rows(const float* s, const float* dp, Index stride, Index keys, Index computed,
                                   const std::int32_t* seen, const float* row_lse, const float* row_rest,
                                   const float* delta, float scale, Word* p_pairs, Word* ds_pairs, Bf16* ds_rows) {
  const Vec factor = broadcast(scale);
  const Vec shift0 = broadcast(-row_lse[0]), shift1 = broadcast(-row_lse[1]);
  const Vec rest0 = broadcast(row_rest[0]), rest1 = broadcast(row_rest[1]);
  const Vec delta0 = broadcast(delta[0]), delta1 = broadcast(delta[1]);
  const Index seen_by_both = min_of(seen[0], seen[1]);
  for (Index key = 0; key < computed; key += kWidth) {
    Vec p0 = exp2_probability(fma(fma(load(s + key), factor, shift0), broadcast(kLog2e), rest0));
    Vec p1 = exp2_probability(fma(fma(load(s + stride + key), factor, shift1), broadcast(kLog2e), rest1));
    if (key + kWidth > seen_by_both) {
      const IntVec index = lane_index() + static_cast<std::int32_t>(key);
      p0 = index < broadcast_int(seen[0]) ? p0 : Vec{};
      p1 = index < broadcast_int(seen[1]) ? p1 : Vec{};
    }
    const Words ds = narrow_two(p0 * (load(dp + key) - delta0), p1 * (load(dp + stride + key) - delta1));
    store_words(p_pairs + key, interleave(narrow_two(p0, p1)));
    store_words(ds_pairs + key, interleave(ds));
    __builtin_memcpy(ds_rows + key, &ds, sizeof(ds) / 2);
    __builtin_memcpy(ds_rows + keys + key, reinterpret_cast<const char*>(&ds) + sizeof(ds) / 2, sizeof(ds) / 2);
  }
  for (Index key = computed; key < keys; key += kWidth) {
    store_words(p_pairs + key, Words{});
    store_words(ds_pairs + key, Words{});
    __builtin_memset(ds_rows + key, 0, kWidth * sizeof(Bf16));
    __builtin_memset(ds_rows + keys + key, 0, kWidth * sizeof(Bf16));
  }
}

void key_block(const KeyBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const KeyWorkspace work(shape, block.key_block, block.scratch);
  const Index depth = work.depth, columns = work.columns, keys = work.keys, stride = work.score_stride;
  const Index ordinal = block.first / block.key_block;
  const bool with_dq = block.heads[0].turn != nullptr;
  const Tiles tiles;

  const Bf16* const k = static_cast<const Bf16*>(block.k.data) + block.first * block.k.stride;
  const Bf16* const v = static_cast<const Bf16*>(block.v.data) + block.first * block.v.stride;
  pack_pairs_of_columns(k, block.k.stride, block.keys, keys, head_dim, depth, work.keys_t, keys);
  pack_pairs_of_columns(v, block.v.stride, block.keys, keys, head_dim, depth, work.values_t, keys);
  if (with_dq) pack_pairs_of_rows(k, block.k.stride, block.keys, keys, head_dim, columns, work.key_pairs);
  for (Index i = 0; i < columns * keys; ++i) work.dk_t[i] = work.dv_t[i] = 0;

  const Index first_row = first_query(shape, block.first) / kBackwardQueryBlock * kBackwardQueryBlock;
  for (Index h = 0; h < block.num_heads; ++h) {
    const BackwardHead& head = block.heads[h];
    for (Index row0 = first_row; row0 < shape.seq_len; row0 += kBackwardQueryBlock) {
      const Index rows = min_of(kBackwardQueryBlock, shape.seq_len - row0);
      const Index padded_rows = round_up(rows, kDepthStep);
      const Bf16* const q = static_cast<const Bf16*>(head.q.data) + row0 * head.q.stride;
      const Bf16* const d_o = static_cast<const Bf16*>(head.d_o.data) + row0 * head.d_o.stride;
      copy_rows(q, head.q.stride, rows, padded_rows, head_dim, depth, work.queries);
      copy_rows(d_o, head.d_o.stride, rows, padded_rows, head_dim, depth, work.d_outputs);
      pack_columns(q, head.q.stride, rows, padded_rows, head_dim, columns, work.queries_c);
      pack_columns(d_o, head.d_o.stride, rows, padded_rows, head_dim, columns, work.d_outputs_c);
      std::int32_t seen[kBackwardQueryBlock];
      float row_lse[kBackwardQueryBlock], row_rest[kBackwardQueryBlock], delta[kBackwardQueryBlock];
      for (Index row = 0; row < padded_rows; ++row) {
        const bool inside = row < rows;
        seen[row] =
            inside ? static_cast<std::int32_t>(clamp_of(visible_keys(shape, row0 + row) - block.first, 0, block.keys))
                   : 0;
        row_lse[row] = inside ? head.row_lse[row0 + row] : __builtin_inff();
        row_rest[row] = inside ? head.row_rest[row0 + row] : 0;
        delta[row] = inside ? head.delta[row0 + row] : 0;
      }
      const auto seen_until = [&](Index row) { return static_cast<Index>(seen[min_of(row, rows) - 1]); };

      for (Index chunk = 0; chunk < padded_rows; chunk += kRowChunk) {
        const Index computed = round_up(seen_until(chunk + kRowChunk), kTile);
        if (computed > 0) {
          multiply_bf16(work.queries + chunk * depth, depth, work.keys_t, keys, depth, work.s, stride, kRowChunk,
                        computed, false);
          multiply_bf16(work.d_outputs + chunk * depth, depth, work.values_t, keys, depth, work.dp, stride, kRowChunk,
                        computed, false);
        }
        for (Index i = 0; i < kRowChunk; i += 2) {
          const Index row = chunk + i;
          score_gradient_rows(work.s + i * stride, work.dp + i * stride, stride, keys, computed, seen + row,
                              row_lse + row, row_rest + row, delta + row, shape.scale, work.p_pairs + row / 2 * keys,
                              work.ds_pairs + row / 2 * keys, work.ds_rows + row * keys);
        }
      }

      for (Index key = 0; key < keys; key += kColumnChunk) {
        const Index width = min_of(kColumnChunk, keys - key);
        const Index begin = clamp_of(first_query(shape, block.first + min_of(key, block.keys - 1)) - row0, 0, rows) /
                            kDepthStep * kDepthStep;
        if (begin >= rows) continue;
        multiply_bf16(work.d_outputs_c + begin, padded_rows, work.p_pairs + begin / 2 * keys + key, keys,
                      padded_rows - begin, work.dv_t + key, keys, columns, width, true);
        multiply_bf16(work.queries_c + begin, padded_rows, work.ds_pairs + begin / 2 * keys + key, keys,
                      padded_rows - begin, work.dk_t + key, keys, columns, width, true);
      }
      if (with_dq) {
        for (Index chunk = 0; chunk < padded_rows; chunk += kRowChunk) {
          multiply_bf16(work.ds_rows + chunk * keys, keys, work.key_pairs, columns,
                        round_up(seen_until(chunk + kRowChunk), kDepthStep), work.dq + chunk * columns, columns,
                        kRowChunk, columns, false);
        }
        std::int32_t* const turn = head.turn + row0 / kBackwardQueryBlock;
        const Index last = (visible_keys(shape, row0 + rows - 1) - 1) / block.key_block;
        wait_for_turn(turn, static_cast<std::int32_t>(ordinal));
        add_query_gradient<Bf16>(head, shape, row0, rows, work.dq, columns, ordinal, last);
        __atomic_store_n(turn, static_cast<std::int32_t>(ordinal + 1), __ATOMIC_RELEASE);
      }
    }
  }
  write_transposed(work.dk_t, keys, block.keys, head_dim, nullptr, shape.scale,
                   static_cast<Bf16*>(block.dk.data) + block.first * block.dk.stride, block.dk.stride);
  write_transposed(work.dv_t, keys, block.keys, head_dim, nullptr, 1.0f,
                   static_cast<Bf16*>(block.dv.data) + block.first * block.dv.stride, block.dv.stride);
}

// --- query-gradient blocks -----------------------------------------------------------------------------------------

/// What a query-gradient block works in.
struct QueryWorkspace {
  Index depth, columns;
  Word *queries_t, *d_outputs_t, *pairs;
  Bf16 *keys_c, *keys, *values;
  float *scores, *dp, *dq_t, *row_lse, *row_rest, *delta;
  Index total;

  explicit QueryWorkspace(const Shape& shape, float* scratch = nullptr)
      : depth(round_up(shape.head_dim, kDepthStep)), columns(round_up(shape.head_dim, kTile)) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = round_up(min_of(kKeyBlock, shape.kv_len), kDepthStep);
    Pieces pieces(scratch);
    queries_t = pieces.take<Word>(rows * depth / 2);
    d_outputs_t = pieces.take<Word>(rows * depth / 2);
    keys = pieces.take<Bf16>(keys_count * depth);
    values = pieces.take<Bf16>(keys_count * depth);
    keys_c = pieces.take<Bf16>(keys_count * columns);
    scores = pieces.take<float>(keys_count * kScoreStride);
    dp = pieces.take<float>(keys_count * kScoreStride);
    pairs = pieces.take<Word>(keys_count / 2 * kPanel);
    dq_t = pieces.take<float>(rows * columns);
    row_lse = pieces.take<float>(rows);
    row_rest = pieces.take<float>(rows);
    delta = pieces.take<float>(rows);
    total = pieces.total();
  }
};

/// dQ of a block of queries (the two-pass backward), transposed like the forward: S^T = K Q^T, dP^T = V dO^T,
/// dQ^T = K^T dS^T.
void query_gradient_block(const QueryGradientBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const QueryWorkspace work(shape, block.scratch);
  const Index depth = work.depth, columns = work.columns;
  const Panels panels(vectors_of(block.rows));
  const Index lanes = panels.total * kWidth;
  const Tiles tiles;

  const Bf16* const q = static_cast<const Bf16*>(block.q.data) + block.first * block.q.stride;
  const Bf16* const d_o = static_cast<const Bf16*>(block.d_o.data) + block.first * block.d_o.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    const Index count = min_of(width, block.rows - row);
    pack_pairs_of_columns(q + row * block.q.stride, block.q.stride, count, width, head_dim, depth,
                          work.queries_t + row * depth / 2, width);
    pack_pairs_of_columns(d_o + row * block.d_o.stride, block.d_o.stride, count, width, head_dim, depth,
                          work.d_outputs_t + row * depth / 2, width);
  }
  for (Index row = 0; row < lanes; ++row) {
    const bool inside = row < block.rows;
    work.row_lse[row] = inside ? block.row_lse[block.first + row] : __builtin_inff();
    work.row_rest[row] = inside ? block.row_rest[block.first + row] : 0;
    work.delta[row] = inside ? block.delta[block.first + row] : 0;
  }
  for (Index i = 0; i < lanes * columns; ++i) work.dq_t[i] = 0;

  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const Index padded_keys = round_up(key_count, kDepthStep);
    const Bf16* const k = static_cast<const Bf16*>(block.k.data) + key0 * block.k.stride;
    const Bf16* const v = static_cast<const Bf16*>(block.v.data) + key0 * block.v.stride;
    copy_rows(k, block.k.stride, key_count, padded_keys, head_dim, depth, work.keys);
    copy_rows(v, block.v.stride, key_count, padded_keys, head_dim, depth, work.values);
    pack_columns(k, block.k.stride, key_count, padded_keys, head_dim, columns, work.keys_c);

    for (Index p = 0; p < panels.count; ++p) {
      const Index row0 = panels.begin(p) * kWidth;
      const Index width = panels.size(p) * kWidth;
      const Index row_count = min_of(width, block.rows - row0);
      const auto seen_by = [&](Index row) {
        return clamp_of(visible_keys(shape, block.first + row0 + row) - key0, 0, key_count);
      };
      const Index panel_keys = seen_by(row_count - 1);
      if (panel_keys == 0) continue;
      const Index computed = round_up(panel_keys, kDepthStep);
      std::int32_t seen[kPanel];
      for (Index i = 0; i < kPanel; ++i) seen[i] = static_cast<std::int32_t>(seen_by(min_of(i, row_count - 1)));

      multiply_bf16(work.keys, depth, work.queries_t + row0 * depth / 2, width, depth, work.scores, kScoreStride,
                    computed, width, false);
      multiply_bf16(work.values, depth, work.d_outputs_t + row0 * depth / 2, width, depth, work.dp, kScoreStride,
                    computed, width, false);
      for (Index lane = 0; lane < width; lane += kWidth) {
        const Vec lse = load(work.row_lse + row0 + lane), rest = load(work.row_rest + row0 + lane);
        const Vec d = load(work.delta + row0 + lane);
        IntVec limit;
        __builtin_memcpy(&limit, seen + lane, sizeof(limit));
        const auto score_gradient = [&](Index key) __attribute__((always_inline)) {
          const Index at = key * kScoreStride + lane;
          const Vec scaled = fma(load(work.scores + at), broadcast(shape.scale), -lse);
          const Vec probability = exp2_probability(fma(scaled, broadcast(kLog2e), rest));
          const IntVec hidden = broadcast_int(static_cast<std::int32_t>(key)) >= limit;
          return hidden ? Vec{} : probability * (load(work.dp + at) - d);
        };
        for (Index key = 0; key < computed; key += 2) {
          store_words(work.pairs + key / 2 * width + lane,
                      interleave(narrow_two(score_gradient(key), score_gradient(key + 1))));
        }
      }
      multiply_bf16(work.keys_c, padded_keys, work.pairs, width, computed, work.dq_t + row0 * columns, width, columns,
                    width, true);
    }
  }
  Bf16* const dq = static_cast<Bf16*>(block.dq.data) + block.first * block.dq.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    write_transposed(work.dq_t + row0 * columns, width, min_of(width, block.rows - row0), head_dim, nullptr,
                     shape.scale, dq + row0 * block.dq.stride, block.dq.stride);
  }
}

}  // namespace

std::int64_t flash_bf16_forward_scratch(const Shape& shape) {
  return ForwardWorkspace(shape).total;
}
void flash_bf16_forward(const ForwardBlock& block) {
  forward_block(block);
}
std::int64_t flash_bf16_query_gradient_scratch(const Shape& shape) {
  return QueryWorkspace(shape).total;
}
void flash_bf16_query_gradient(const QueryGradientBlock& block) {
  query_gradient_block(block);
}
void flash_bf16_delta(const DeltaBlock& block) {
  delta_block(block);
}
std::int64_t flash_bf16_key_block_scratch(const Shape& shape, std::int64_t key_block_size) {
  return KeyWorkspace(shape, key_block_size).total;
}
void flash_bf16_key_block(const KeyBlock& block) {
  key_block(block);
}

}  // namespace warpmeter::attention::WM_ISA
