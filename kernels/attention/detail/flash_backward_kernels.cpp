// The backward of the CPU flash attention, compiled once an instruction set.
//
// With P = exp(S - LSE), delta = rowsum(O * dO) and dS = P * (dP - delta):
//     S = scale Q K^T,  dP = dO V^T,  dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K.
//
// A key block keeps K^T, V^T (packed once) and its dK, dV in cache while all queries that see it pass by; scores are
// (queries, keys). A query-gradient block (the two-pass backward's dQ) keeps Q^T, dO^T and dQ while the keys pass by;
// scores are (keys, queries) as in the forward. Either way both score products have their packed operand packed once,
// and P^T, dS^T are read as they lie. S is exact up to the product's own rounding and
// scaled as LSE is taken from it; dQ and dK are scaled as they are written. P and dS are made in the registers of dP's
// product.

#include "kernels/attention/detail/flash_micro.hpp"
#include "kernels/attention/detail/flash_turns.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using flash_detail::BackwardHead;
using flash_detail::DeltaBlock;
using flash_detail::kBackwardQueryBlock;
using flash_detail::KeyBlock;
using flash_detail::kKeyBlock;
using flash_detail::kQueryBlock;
using flash_detail::QueryGradientBlock;
using flash_detail::Shape;

WM_INLINE bool rows_in_place(const Shape& shape) {
  return shape.element == Element::fp32 && shape.head_dim % kWidth == 0;
}

// --- scores --------------------------------------------------------------------------------------------------------

/// P and dS of MR rows and a panel of columns: dP = A B in registers, S from `p`, where P takes its place.
/// by_row: row_lse, delta and the number of visible columns belong to rows (row i sees columns under seen[i]);
/// otherwise to lanes (lane j is seen by rows under seen[j], rows counted from `row`), and P is not stored.
template <int MR, int NV, bool by_row, bool masked>
[[gnu::noinline]] void score_gradient(const float* __restrict a, Index lda, const float* __restrict b, Index depth,
                                      float* __restrict p, float* __restrict ds, Index ld,
                                      const float* __restrict row_lse, const float* __restrict row_rest,
                                      const float* __restrict delta, const std::int32_t* __restrict seen, Index first,
                                      float scale) {
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec{};
  }
  multiply<MR, NV, ALayout::row_major>(a, lda, b, NV * kWidth, depth, acc);
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const Index at = i * ld + v * kWidth;
      const Vec l = by_row ? broadcast(row_lse[i]) : load(row_lse + v * kWidth);
      const Vec rest = by_row ? broadcast(row_rest[i]) : load(row_rest + v * kWidth);
      const Vec d = by_row ? broadcast(delta[i]) : load(delta + v * kWidth);
      Vec probability = exp2_probability(fma(fma(load(p + at), broadcast(scale), -l), broadcast(kLog2e), rest));
      if constexpr (masked) {
        IntVec limit, index;
        if constexpr (by_row) {
          limit = broadcast_int(seen[i]);
          index = lane_index() + static_cast<std::int32_t>(first + v * kWidth);
        } else {
          __builtin_memcpy(&limit, seen + v * kWidth, sizeof(limit));
          index = broadcast_int(static_cast<std::int32_t>(first + i));
        }
        probability = index < limit ? probability : Vec{};
      }
      if constexpr (by_row) store(p + at, probability);
      store(ds + at, probability * (acc[i][v] - d));
    }
  }
}

// --- delta ---------------------------------------------------------------------------------------------------------

/// Lanes are rows, and the sum runs over head_dim in dP's order: a query that sees one key has O = V of it and dP =
/// delta to the last bit, so its dS is exactly 0.
template <class T>
void delta_block(const DeltaBlock& block) {
  const Shape& shape = block.shape;
  const auto load_transposed = [&](const flash_detail::Rows& from, Index row, Index rows, Index k, Vec(&to)[kWidth]) {
    const Index count = min_of(kWidth, shape.head_dim - k);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      to[i] = Vec{};
      if (i < rows) {
        const T* const p = static_cast<const T*>(from.data) + (row + i) * from.stride + k;
        to[i] = count == kWidth ? load(p) : load_partial(p, count);
      }
    }
    transpose(to);
  };
  for (Index first = 0; first < block.rows; first += kWidth) {
    const Index row = block.first + first;
    const Index rows = min_of(kWidth, block.rows - first);
    Vec sum{};
    for (Index k = 0; k < shape.head_dim; k += kWidth) {
      Vec o[kWidth], d_o[kWidth];
      load_transposed(block.o, row, rows, k, o);
      load_transposed(block.d_o, row, rows, k, d_o);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) sum = fma(d_o[i], o[i], sum);
    }
    store_partial(block.delta + row, sum, rows);
    for (Index i = row; i < row + rows; ++i) {
      write_row_lse(block, i);
    }
  }
}

// --- key blocks ----------------------------------------------------------------------------------------------------

/// What a key block works in.
struct KeyWorkspace {
  Index score_stride;
  float *keys_t, *values_t, *keys, *queries, *d_outputs, *p, *ds, *dq, *dk, *dv;
  Index total;

  KeyWorkspace(const Shape& shape, Index key_block, float* scratch = nullptr) {
    const Index lanes = round_up(min_of(key_block, shape.kv_len), kWidth);
    const Index padded = round_up(shape.head_dim, kWidth);
    const Index rows = min_of(kBackwardQueryBlock, shape.seq_len);
    score_stride = lanes + kWidth;  // off the powers of two
    Pieces pieces(scratch);
    keys_t = pieces.take<float>(lanes * shape.head_dim);
    values_t = pieces.take<float>(lanes * shape.head_dim);
    keys = pieces.take<float>(rows_in_place(shape) ? 0 : lanes * padded);
    queries = pieces.take<float>(rows * padded);
    d_outputs = pieces.take<float>(rows * padded);
    p = pieces.take<float>(rows * score_stride);
    ds = pieces.take<float>(rows * score_stride);
    dq = pieces.take<float>(rows * padded);
    dk = pieces.take<float>(lanes * padded);
    dv = pieces.take<float>(lanes * padded);
    total = pieces.total();
  }
};

template <class T>
void key_block(const KeyBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const Index padded = round_up(head_dim, kWidth);
  const KeyWorkspace work(shape, block.key_block, block.scratch);
  const Index ld = work.score_stride;
  const Panels key_panels(vectors_of(block.keys));
  const Index vectors = padded / kWidth;
  const Index ordinal = block.first / block.key_block;

  const T* const k = static_cast<const T*>(block.k.data) + block.first * block.k.stride;
  const T* const v = static_cast<const T*>(block.v.data) + block.first * block.v.stride;
  for (Index panel = 0; panel < key_panels.count; ++panel) {
    const Index key = key_panels.begin(panel) * kWidth;
    const Index width = key_panels.size(panel) * kWidth;
    const Index count = min_of(width, block.keys - key);
    pack_transposed(k + key * block.k.stride, block.k.stride, count, width, head_dim, work.keys_t + key * head_dim,
                    width);
    pack_transposed(v + key * block.v.stride, block.v.stride, count, width, head_dim, work.values_t + key * head_dim,
                    width);
  }
  const float* keys = reinterpret_cast<const float*>(k);
  Index key_stride = block.k.stride;
  const bool with_dq = block.heads[0].turn != nullptr;
  if (!rows_in_place(shape) && with_dq) {
    pack_rows(k, block.k.stride, block.keys, head_dim, work.keys, padded);
    keys = work.keys;
    key_stride = padded;
  }
  for (Index i = 0; i < block.keys * padded; ++i) work.dk[i] = work.dv[i] = 0;

  const Index first_row = first_query(shape, block.first) / kBackwardQueryBlock * kBackwardQueryBlock;
  for (Index h = 0; h < block.num_heads; ++h) {
    const BackwardHead& head = block.heads[h];
    for (Index row0 = first_row; row0 < shape.seq_len; row0 += kBackwardQueryBlock) {
      const Index rows = min_of(kBackwardQueryBlock, shape.seq_len - row0);
      pack_rows(static_cast<const T*>(head.q.data) + row0 * head.q.stride, head.q.stride, rows, head_dim, work.queries,
                padded);
      pack_rows(static_cast<const T*>(head.d_o.data) + row0 * head.d_o.stride, head.d_o.stride, rows, head_dim,
                work.d_outputs, padded);
      std::int32_t seen[kBackwardQueryBlock];
      for (Index row = 0; row < rows; ++row) {
        seen[row] = static_cast<std::int32_t>(clamp_of(visible_keys(shape, row0 + row) - block.first, 0, block.keys));
      }

      for (Index panel = 0; panel < key_panels.count; ++panel) {
        const Index key = key_panels.begin(panel) * kWidth;
        const Index key_end = key_panels.begin(panel + 1) * kWidth;
        for_vectors(
            key_panels.size(panel), [&]<int NV>() __attribute__((always_inline)) {
              for_row_groups<NV>(
                  rows, [&]<int MR>(Index row) __attribute__((always_inline)) {
                    float* const p_rows = work.p + row * ld + key;
                    float* const ds_rows = work.ds + row * ld + key;
                    if (seen[row + MR - 1] <= key) {  // above the diagonal: what later products may touch is 0
                      for (int i = 0; i < MR; ++i) {
                        for (int j = 0; j < NV; ++j) {
                          store(p_rows + i * ld + j * kWidth, Vec{});
                          store(ds_rows + i * ld + j * kWidth, Vec{});
                        }
                      }
                      return;
                    }
                    product<MR, NV, ALayout::row_major, CMode::store>(work.queries + row * padded, padded,
                                                                      work.keys_t + key * head_dim, NV * kWidth,
                                                                      head_dim, p_rows, ld, nullptr);
                    const auto run =
                        seen[row] >= key_end ? score_gradient<MR, NV, true, false> : score_gradient<MR, NV, true, true>;
                    run(work.d_outputs + row * padded, padded, work.values_t + key * head_dim, head_dim, p_rows,
                        ds_rows, ld, head.row_lse + row0 + row, head.row_rest + row0 + row, head.delta + row0 + row,
                        seen + row, key, shape.scale);
                  });
            });
      }

      // Keys [key, ...) are seen from this row of the block on.
      const auto rows_of_keys = [&](Index key, Index) {
        return Range{clamp_of(first_query(shape, block.first + key) - row0, 0, rows), rows};
      };
      multiply_rows<ALayout::column_major, CMode::add>(work.p, ld, work.d_outputs, padded, vectors, work.dv, padded,
                                                       block.keys, rows_of_keys);
      multiply_rows<ALayout::column_major, CMode::add>(work.ds, ld, work.queries, padded, vectors, work.dk, padded,
                                                       block.keys, rows_of_keys);
      if (with_dq) {
        multiply_rows<ALayout::row_major, CMode::store>(work.ds, ld, keys, key_stride, vectors, work.dq, padded, rows,
                                                        [&](Index row, Index count) {
                                                          return Range{0, seen[row + count - 1]};
                                                        });
        std::int32_t* const turn = head.turn + row0 / kBackwardQueryBlock;
        const Index last = (visible_keys(shape, row0 + rows - 1) - 1) / block.key_block;
        wait_for_turn(turn, static_cast<std::int32_t>(ordinal));
        add_query_gradient<T>(head, shape, row0, rows, work.dq, padded, ordinal, last);
        __atomic_store_n(turn, static_cast<std::int32_t>(ordinal + 1), __ATOMIC_RELEASE);
      }
    }
  }
  write_rows(work.dk, padded, block.keys, head_dim, shape.scale,
             static_cast<T*>(block.dk.data) + block.first * block.dk.stride, block.dk.stride);
  write_rows(work.dv, padded, block.keys, head_dim, 1.0f,
             static_cast<T*>(block.dv.data) + block.first * block.dv.stride, block.dv.stride);
}

// --- query-gradient blocks -----------------------------------------------------------------------------------------

constexpr Index kScoreStride = kPanel + kWidth;

/// What a query-gradient block works in.
struct QueryWorkspace {
  float *queries_t, *d_outputs_t, *scores, *ds, *row_lse, *row_rest, *delta, *dq, *keys, *values;
  Index total;

  explicit QueryWorkspace(const Shape& shape, float* scratch = nullptr) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = min_of(kKeyBlock, shape.kv_len);
    const Index padded = round_up(shape.head_dim, kWidth);
    Pieces pieces(scratch);
    queries_t = pieces.take<float>(rows * shape.head_dim);
    d_outputs_t = pieces.take<float>(rows * shape.head_dim);
    scores = pieces.take<float>(keys_count * kScoreStride);
    ds = pieces.take<float>(keys_count * kScoreStride);
    row_lse = pieces.take<float>(rows);
    row_rest = pieces.take<float>(rows);
    delta = pieces.take<float>(rows);
    dq = pieces.take<float>(rows * padded);
    keys = pieces.take<float>(rows_in_place(shape) ? 0 : keys_count * padded);
    values = pieces.take<float>(shape.element == Element::fp32 ? 0 : keys_count * padded);
    total = pieces.total();
  }
};

template <class T>
void query_gradient_block(const QueryGradientBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const Index padded = round_up(head_dim, kWidth);
  const QueryWorkspace work(shape, block.scratch);
  const Panels query_panels(vectors_of(block.rows));

  const T* const q = static_cast<const T*>(block.q.data) + block.first * block.q.stride;
  const T* const d_o = static_cast<const T*>(block.d_o.data) + block.first * block.d_o.stride;
  for (Index panel = 0; panel < query_panels.count; ++panel) {
    const Index row = query_panels.begin(panel) * kWidth;
    const Index width = query_panels.size(panel) * kWidth;
    const Index count = min_of(width, block.rows - row);
    pack_transposed(q + row * block.q.stride, block.q.stride, count, width, head_dim, work.queries_t + row * head_dim,
                    width);
    pack_transposed(d_o + row * block.d_o.stride, block.d_o.stride, count, width, head_dim,
                    work.d_outputs_t + row * head_dim, width);
  }
  for (Index row = 0; row < query_panels.total * kWidth; ++row) {
    work.row_lse[row] = row < block.rows ? block.row_lse[block.first + row] : __builtin_inff();
    work.row_rest[row] = row < block.rows ? block.row_rest[block.first + row] : 0;
    work.delta[row] = row < block.rows ? block.delta[block.first + row] : 0;
  }
  for (Index i = 0; i < block.rows * padded; ++i) work.dq[i] = 0;

  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const T* const k = static_cast<const T*>(block.k.data) + key0 * block.k.stride;
    const T* const v = static_cast<const T*>(block.v.data) + key0 * block.v.stride;
    const float *keys, *values;
    Index key_stride = padded, value_stride = padded;
    if (rows_in_place(shape)) {
      keys = reinterpret_cast<const float*>(k);
      key_stride = block.k.stride;
    } else {
      pack_rows(k, block.k.stride, key_count, head_dim, work.keys, padded);
      keys = work.keys;
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      values = reinterpret_cast<const float*>(v);
      value_stride = block.v.stride;
    } else {
      pack_rows(v, block.v.stride, key_count, head_dim, work.values, padded);
      values = work.values;
    }

    for (Index panel = 0; panel < query_panels.count; ++panel) {
      const Index row0 = query_panels.begin(panel) * kWidth;
      const Index row_count = min_of(query_panels.size(panel) * kWidth, block.rows - row0);
      const auto seen_by = [&](Index row) {
        return clamp_of(visible_keys(shape, block.first + row0 + row) - key0, 0, key_count);
      };
      const Index seen_by_all = seen_by(0);
      const Index panel_keys = seen_by(row_count - 1);
      if (panel_keys == 0) continue;
      std::int32_t seen[kPanel];
      for (Index i = 0; i < kPanel; ++i) seen[i] = static_cast<std::int32_t>(seen_by(min_of(i, row_count - 1)));

      for_vectors(
          query_panels.size(panel), [&]<int NV>() __attribute__((always_inline)) {
            for_row_groups<NV>(
                panel_keys, [&]<int MR>(Index key) __attribute__((always_inline)) {
                  float* const at = work.scores + key * kScoreStride;
                  product<MR, NV, ALayout::row_major, CMode::store>(keys + key * key_stride, key_stride,
                                                                    work.queries_t + row0 * head_dim, NV * kWidth,
                                                                    head_dim, at, kScoreStride, nullptr);
                  const auto run = key + MR <= seen_by_all ? score_gradient<MR, NV, false, false>
                                                           : score_gradient<MR, NV, false, true>;
                  run(values + key * value_stride, value_stride, work.d_outputs_t + row0 * head_dim, head_dim, at,
                      work.ds + key * kScoreStride, kScoreStride, work.row_lse + row0, work.row_rest + row0,
                      work.delta + row0, seen, key, shape.scale);
                });
          });
      multiply_rows<ALayout::column_major, CMode::add>(work.ds, kScoreStride, keys, key_stride, padded / kWidth,
                                                       work.dq + row0 * padded, padded, row_count,
                                                       [&](Index row, Index count) {
                                                         return Range{0, seen[row + count - 1]};
                                                       });
    }
  }
  write_rows(work.dq, padded, block.rows, head_dim, shape.scale,
             static_cast<T*>(block.dq.data) + block.first * block.dq.stride, block.dq.stride);
}

}  // namespace

void flash_delta(const DeltaBlock& block) {
  for_element(block.shape.element, [&]<class T>(T*) { delta_block<T>(block); });
}

std::int64_t flash_key_block_scratch(const Shape& shape, std::int64_t key_block) {
  return KeyWorkspace(shape, key_block).total;
}

void flash_key_block(const KeyBlock& block) {
  for_element(block.shape.element, [&]<class T>(T*) { key_block<T>(block); });
}

std::int64_t flash_query_gradient_scratch(const Shape& shape) {
  return QueryWorkspace(shape).total;
}

void flash_query_gradient(const QueryGradientBlock& block) {
  for_element(block.shape.element, [&]<class T>(T*) { query_gradient_block<T>(block); });
}

}  // namespace warpmeter::attention::WM_ISA
