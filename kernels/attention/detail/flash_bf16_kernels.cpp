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

/// Hands out pieces of scratch, in floats from its start; each begins on a cache line.
class Pieces {
 public:
  Index floats(Index count) {
    const Index here = at_;
    at_ += round_up(count, 16);
    return here;
  }
  Index halves(Index count) { return floats((count + 1) / 2); }
  [[nodiscard]] Index total() const { return at_; }

 private:
  Index at_ = 0;
};

WM_INLINE Bf16* halves_at(float* scratch, Index offset) {
  return reinterpret_cast<Bf16*>(scratch + offset);
}
WM_INLINE Word* words_at(float* scratch, Index offset) {
  return reinterpret_cast<Word*>(scratch + offset);
}

// --- forward -------------------------------------------------------------------------------------------------------

constexpr Index kScoreStride = kPanel + kWidth;

struct ForwardLayout {
  Index depth, columns;  ///< head_dim padded as depth, as rows of V^T
  Index queries_t, keys, values_t, scores, pairs, output_t, maximum, sum, correction, total;

  explicit ForwardLayout(const Shape& shape)
      : depth(round_up(shape.head_dim, kDepthStep)), columns(round_up(shape.head_dim, kTile)) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = round_up(min_of(kKeyBlock, shape.kv_len), kDepthStep);
    Pieces pieces;
    queries_t = pieces.halves(rows * depth);
    keys = pieces.halves(keys_count * depth);
    values_t = pieces.halves(keys_count * columns);
    scores = pieces.floats(keys_count * kScoreStride);
    pairs = pieces.floats(keys_count / 2 * kPanel);
    output_t = pieces.floats(rows * columns);
    maximum = pieces.floats(rows);
    sum = pieces.floats(rows);
    correction = pieces.floats(rows);
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
  const ForwardLayout layout(shape);
  const Index depth = layout.depth, columns = layout.columns;
  Word* const queries_t = words_at(block.scratch, layout.queries_t);
  Bf16* const values_t = halves_at(block.scratch, layout.values_t);
  float* const scores = block.scratch + layout.scores;
  Word* const pairs = words_at(block.scratch, layout.pairs);
  float* const output_t = block.scratch + layout.output_t;
  float* const maximum = block.scratch + layout.maximum;
  float* const sum = block.scratch + layout.sum;
  float* const correction = block.scratch + layout.correction;
  const Panels panels(vectors_of(block.rows));
  const Index lanes = panels.total * kWidth;
  const Tiles tiles;

  const Bf16* const q = static_cast<const Bf16*>(block.q.data) + block.first * block.q.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    pack_pairs_of_columns(q + row * block.q.stride, block.q.stride, min_of(width, block.rows - row), width, head_dim,
                          depth, queries_t + row * depth / 2, width);
  }
  for (Index i = 0; i < lanes; ++i) {
    maximum[i] = kMinusInfinity;
    sum[i] = 0;
  }
  for (Index i = 0; i < lanes * columns; ++i) output_t[i] = 0;

  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const Index padded_keys = round_up(key_count, kDepthStep);
    const Bf16* keys = static_cast<const Bf16*>(block.k.data) + key0 * block.k.stride;
    Index key_stride = block.k.stride;
    if (head_dim != depth || key_count % kTile != 0) {
      Bf16* const copy = halves_at(block.scratch, layout.keys);
      copy_rows(keys, block.k.stride, key_count, padded_keys, head_dim, depth, copy);
      keys = copy;
      key_stride = depth;
    }
    pack_columns(static_cast<const Bf16*>(block.v.data) + key0 * block.v.stride, block.v.stride, key_count, padded_keys,
                 head_dim, columns, values_t);

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

      multiply_bf16(keys, key_stride, queries_t + row0 * depth / 2, width, depth, scores, kScoreStride,
                    round_up(panel_keys, kTile), width, false);
      bool moved = false;
      for_vectors(
          panels.size(p), [&]<int NV>() __attribute__((always_inline)) {
            moved = softmax_panel<NV>(scores, panel_keys, seen_by_all, seen, shape.scale * kLog2e, maximum + row0,
                                      sum + row0, correction + row0, pairs);
          });
      float* const panel_output = output_t + row0 * columns;
      if (moved && key0 > 0) rescale(panel_output, columns, width, correction + row0);
      multiply_bf16(values_t, padded_keys, pairs, width, round_up(panel_keys, kDepthStep), panel_output, width, columns,
                    width, true);
    }
  }

  for (Index row = 0; row < lanes; ++row) {
    const float total = sum[row];
    correction[row] = total == 0 ? 0 : 1 / total;
    if (row < block.rows) write_lse(block, row, maximum[row], total);
  }
  Bf16* const o = static_cast<Bf16*>(block.o.data) + block.first * block.o.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    write_transposed(output_t + row0 * columns, width, min_of(width, block.rows - row0), head_dim, correction + row0,
                     1.0f, o + row0 * block.o.stride, block.o.stride);
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

struct KeyLayout {
  Index depth, columns, keys, score_stride;
  Index keys_t, values_t, key_pairs, queries, d_outputs, queries_c, d_outputs_c, s, dp, p_pairs, ds_pairs, ds_rows, dq,
      dk_t, dv_t, total;

  KeyLayout(const Shape& shape, Index key_block)
      : depth(round_up(shape.head_dim, kDepthStep)),
        columns(round_up(shape.head_dim, kTile)),
        keys(round_up(min_of(key_block, shape.kv_len), kDepthStep)),
        score_stride(keys + kWidth) {
    const Index rows = round_up(min_of(kBackwardQueryBlock, shape.seq_len), kDepthStep);
    Pieces pieces;
    keys_t = pieces.halves(keys * depth);
    values_t = pieces.halves(keys * depth);
    key_pairs = pieces.halves(keys * columns);
    queries = pieces.halves(rows * depth);
    d_outputs = pieces.halves(rows * depth);
    queries_c = pieces.halves(rows * columns);
    d_outputs_c = pieces.halves(rows * columns);
    s = pieces.floats(kRowChunk * score_stride);
    dp = pieces.floats(kRowChunk * score_stride);
    p_pairs = pieces.floats(rows / 2 * keys);
    ds_pairs = pieces.floats(rows / 2 * keys);
    ds_rows = pieces.halves(rows * keys);
    dq = pieces.floats(rows * columns);
    dk_t = pieces.floats(columns * keys);
    dv_t = pieces.floats(columns * keys);
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
  const KeyLayout layout(shape, block.key_block);
  const Index depth = layout.depth, columns = layout.columns, keys = layout.keys, stride = layout.score_stride;
  Word* const keys_t = words_at(block.scratch, layout.keys_t);
  Word* const values_t = words_at(block.scratch, layout.values_t);
  Word* const key_pairs = words_at(block.scratch, layout.key_pairs);
  Bf16* const queries = halves_at(block.scratch, layout.queries);
  Bf16* const d_outputs = halves_at(block.scratch, layout.d_outputs);
  Bf16* const queries_c = halves_at(block.scratch, layout.queries_c);
  Bf16* const d_outputs_c = halves_at(block.scratch, layout.d_outputs_c);
  float* const s = block.scratch + layout.s;
  float* const dp = block.scratch + layout.dp;
  Word* const p_pairs = words_at(block.scratch, layout.p_pairs);
  Word* const ds_pairs = words_at(block.scratch, layout.ds_pairs);
  Bf16* const ds_rows = halves_at(block.scratch, layout.ds_rows);
  float* const dq = block.scratch + layout.dq;
  float* const dk_t = block.scratch + layout.dk_t;
  float* const dv_t = block.scratch + layout.dv_t;
  const Index ordinal = block.first / block.key_block;
  const bool with_dq = block.heads[0].turn != nullptr;
  const Tiles tiles;

  const Bf16* const k = static_cast<const Bf16*>(block.k.data) + block.first * block.k.stride;
  const Bf16* const v = static_cast<const Bf16*>(block.v.data) + block.first * block.v.stride;
  pack_pairs_of_columns(k, block.k.stride, block.keys, keys, head_dim, depth, keys_t, keys);
  pack_pairs_of_columns(v, block.v.stride, block.keys, keys, head_dim, depth, values_t, keys);
  if (with_dq) pack_pairs_of_rows(k, block.k.stride, block.keys, keys, head_dim, columns, key_pairs);
  for (Index i = 0; i < columns * keys; ++i) dk_t[i] = dv_t[i] = 0;

  const Index first_row = first_query(shape, block.first) / kBackwardQueryBlock * kBackwardQueryBlock;
  for (Index h = 0; h < block.num_heads; ++h) {
    const BackwardHead& head = block.heads[h];
    if (with_dq && ordinal == 0) clear_unseeing_queries<Bf16>(head, shape);
    for (Index row0 = first_row; row0 < shape.seq_len; row0 += kBackwardQueryBlock) {
      const Index rows = min_of(kBackwardQueryBlock, shape.seq_len - row0);
      const Index padded_rows = round_up(rows, kDepthStep);
      const Bf16* const q = static_cast<const Bf16*>(head.q.data) + row0 * head.q.stride;
      const Bf16* const d_o = static_cast<const Bf16*>(head.d_o.data) + row0 * head.d_o.stride;
      copy_rows(q, head.q.stride, rows, padded_rows, head_dim, depth, queries);
      copy_rows(d_o, head.d_o.stride, rows, padded_rows, head_dim, depth, d_outputs);
      pack_columns(q, head.q.stride, rows, padded_rows, head_dim, columns, queries_c);
      pack_columns(d_o, head.d_o.stride, rows, padded_rows, head_dim, columns, d_outputs_c);
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
          multiply_bf16(queries + chunk * depth, depth, keys_t, keys, depth, s, stride, kRowChunk, computed, false);
          multiply_bf16(d_outputs + chunk * depth, depth, values_t, keys, depth, dp, stride, kRowChunk, computed,
                        false);
        }
        for (Index i = 0; i < kRowChunk; i += 2) {
          const Index row = chunk + i;
          score_gradient_rows(s + i * stride, dp + i * stride, stride, keys, computed, seen + row, row_lse + row,
                              row_rest + row, delta + row, shape.scale, p_pairs + row / 2 * keys,
                              ds_pairs + row / 2 * keys, ds_rows + row * keys);
        }
      }

      for (Index key = 0; key < keys; key += kColumnChunk) {
        const Index width = min_of(kColumnChunk, keys - key);
        const Index begin = clamp_of(first_query(shape, block.first + min_of(key, block.keys - 1)) - row0, 0, rows) /
                            kDepthStep * kDepthStep;
        if (begin >= rows) continue;
        multiply_bf16(d_outputs_c + begin, padded_rows, p_pairs + begin / 2 * keys + key, keys, padded_rows - begin,
                      dv_t + key, keys, columns, width, true);
        multiply_bf16(queries_c + begin, padded_rows, ds_pairs + begin / 2 * keys + key, keys, padded_rows - begin,
                      dk_t + key, keys, columns, width, true);
      }
      if (with_dq) {
        for (Index chunk = 0; chunk < padded_rows; chunk += kRowChunk) {
          multiply_bf16(ds_rows + chunk * keys, keys, key_pairs, columns,
                        round_up(seen_until(chunk + kRowChunk), kDepthStep), dq + chunk * columns, columns, kRowChunk,
                        columns, false);
        }
        std::int32_t* const turn = head.turn + row0 / kBackwardQueryBlock;
        const Index last = (visible_keys(shape, row0 + rows - 1) - 1) / block.key_block;
        wait_for_turn(turn, static_cast<std::int32_t>(ordinal));
        add_query_gradient<Bf16>(head, shape, row0, rows, dq, columns, ordinal, last);
        __atomic_store_n(turn, static_cast<std::int32_t>(ordinal + 1), __ATOMIC_RELEASE);
      }
    }
  }
  write_transposed(dk_t, keys, block.keys, head_dim, nullptr, shape.scale,
                   static_cast<Bf16*>(block.dk.data) + block.first * block.dk.stride, block.dk.stride);
  write_transposed(dv_t, keys, block.keys, head_dim, nullptr, 1.0f,
                   static_cast<Bf16*>(block.dv.data) + block.first * block.dv.stride, block.dv.stride);
}

// --- query-gradient blocks -----------------------------------------------------------------------------------------

struct QueryLayout {
  Index depth, columns;
  Index queries_t, d_outputs_t, keys, values, keys_c, scores, dp, pairs, dq_t, row_lse, row_rest, delta, total;

  explicit QueryLayout(const Shape& shape)
      : depth(round_up(shape.head_dim, kDepthStep)), columns(round_up(shape.head_dim, kTile)) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = round_up(min_of(kKeyBlock, shape.kv_len), kDepthStep);
    Pieces pieces;
    queries_t = pieces.halves(rows * depth);
    d_outputs_t = pieces.halves(rows * depth);
    keys = pieces.halves(keys_count * depth);
    values = pieces.halves(keys_count * depth);
    keys_c = pieces.halves(keys_count * columns);
    scores = pieces.floats(keys_count * kScoreStride);
    dp = pieces.floats(keys_count * kScoreStride);
    pairs = pieces.floats(keys_count / 2 * kPanel);
    dq_t = pieces.floats(rows * columns);
    row_lse = pieces.floats(rows);
    row_rest = pieces.floats(rows);
    delta = pieces.floats(rows);
    total = pieces.total();
  }
};

/// dQ of a block of queries (the two-pass backward), transposed like the forward: S^T = K Q^T, dP^T = V dO^T,
/// dQ^T = K^T dS^T.
void query_gradient_block(const QueryGradientBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const QueryLayout layout(shape);
  const Index depth = layout.depth, columns = layout.columns;
  Word* const queries_t = words_at(block.scratch, layout.queries_t);
  Word* const d_outputs_t = words_at(block.scratch, layout.d_outputs_t);
  Bf16* const keys_c = halves_at(block.scratch, layout.keys_c);
  float* const scores = block.scratch + layout.scores;
  float* const dp = block.scratch + layout.dp;
  Word* const pairs = words_at(block.scratch, layout.pairs);
  float* const dq_t = block.scratch + layout.dq_t;
  float* const row_lse = block.scratch + layout.row_lse;
  float* const row_rest = block.scratch + layout.row_rest;
  float* const delta = block.scratch + layout.delta;
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
                          queries_t + row * depth / 2, width);
    pack_pairs_of_columns(d_o + row * block.d_o.stride, block.d_o.stride, count, width, head_dim, depth,
                          d_outputs_t + row * depth / 2, width);
  }
  for (Index row = 0; row < lanes; ++row) {
    const bool inside = row < block.rows;
    row_lse[row] = inside ? block.row_lse[block.first + row] : __builtin_inff();
    row_rest[row] = inside ? block.row_rest[block.first + row] : 0;
    delta[row] = inside ? block.delta[block.first + row] : 0;
  }
  for (Index i = 0; i < lanes * columns; ++i) dq_t[i] = 0;

  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const Index padded_keys = round_up(key_count, kDepthStep);
    const Bf16* const k = static_cast<const Bf16*>(block.k.data) + key0 * block.k.stride;
    const Bf16* const v = static_cast<const Bf16*>(block.v.data) + key0 * block.v.stride;
    Bf16* const keys = halves_at(block.scratch, layout.keys);
    Bf16* const values = halves_at(block.scratch, layout.values);
    copy_rows(k, block.k.stride, key_count, padded_keys, head_dim, depth, keys);
    copy_rows(v, block.v.stride, key_count, padded_keys, head_dim, depth, values);
    pack_columns(k, block.k.stride, key_count, padded_keys, head_dim, columns, keys_c);

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

      multiply_bf16(keys, depth, queries_t + row0 * depth / 2, width, depth, scores, kScoreStride, computed, width,
                    false);
      multiply_bf16(values, depth, d_outputs_t + row0 * depth / 2, width, depth, dp, kScoreStride, computed, width,
                    false);
      for (Index lane = 0; lane < width; lane += kWidth) {
        const Vec lse = load(row_lse + row0 + lane), rest = load(row_rest + row0 + lane);
        const Vec d = load(delta + row0 + lane);
        IntVec limit;
        __builtin_memcpy(&limit, seen + lane, sizeof(limit));
        const auto score_gradient = [&](Index key) __attribute__((always_inline)) {
          const Index at = key * kScoreStride + lane;
          const Vec scaled = fma(load(scores + at), broadcast(shape.scale), -lse);
          const Vec probability = exp2_probability(fma(scaled, broadcast(kLog2e), rest));
          const IntVec hidden = broadcast_int(static_cast<std::int32_t>(key)) >= limit;
          return hidden ? Vec{} : probability * (load(dp + at) - d);
        };
        for (Index key = 0; key < computed; key += 2) {
          store_words(pairs + key / 2 * width + lane,
                      interleave(narrow_two(score_gradient(key), score_gradient(key + 1))));
        }
      }
      multiply_bf16(keys_c, padded_keys, pairs, width, computed, dq_t + row0 * columns, width, columns, width, true);
    }
  }
  Bf16* const dq = static_cast<Bf16*>(block.dq.data) + block.first * block.dq.stride;
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    write_transposed(dq_t + row0 * columns, width, min_of(width, block.rows - row0), head_dim, nullptr, shape.scale,
                     dq + row0 * block.dq.stride, block.dq.stride);
  }
}

}  // namespace

std::int64_t flash_bf16_forward_scratch(const Shape& shape) {
  return ForwardLayout(shape).total;
}
void flash_bf16_forward(const ForwardBlock& block) {
  forward_block(block);
}
std::int64_t flash_bf16_query_gradient_scratch(const Shape& shape) {
  return QueryLayout(shape).total;
}
void flash_bf16_query_gradient(const QueryGradientBlock& block) {
  query_gradient_block(block);
}
void flash_bf16_delta(const DeltaBlock& block) {
  delta_block(block);
}
std::int64_t flash_bf16_key_block_scratch(const Shape& shape, std::int64_t key_block_size) {
  return KeyLayout(shape, key_block_size).total;
}
void flash_bf16_key_block(const KeyBlock& block) {
  key_block(block);
}

}  // namespace warpmeter::attention::WM_ISA
