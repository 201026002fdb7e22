// A stream of the CPU's flash decoding, compiled once an instruction set.
//
// Two forms. With few query rows (one token without grouped heads: one row) the keys are read as they lie and each
// score is a dot product: 16 keys' products are summed by one transposition instead of 16 horizontal sums; P V is made
// with the columns of V in the lanes. Both read every row from end to end, in order, which is what memory likes, and
// 16-bit rows are widened in registers. With more rows the queries are in the lanes as in the flash forward: S^T = K
// Q^T has K's rows as they lie, P^T is A of P V.
//
// Scores stay unscaled up to the exponential (see flash_forward_kernels.cpp), and so do the maxima of partial results.

#include "kernels/attention/detail/decode_kernels.hpp"

#include "kernels/attention/detail/decode_reads.hpp"
#include "kernels/attention/detail/flash_micro.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using decode_detail::kMostRows;
using decode_detail::kRowPadding;
using decode_detail::Shape;
using decode_detail::Stream;

constexpr float kMinusInfinity = -__builtin_inff();
/// Rows from which queries are in the lanes.
constexpr Index kLanesFrom = kWidth / 2 + 1;
/// Rows of S^T are this far apart: off the powers of two, which would fall into few cache sets.
constexpr Index kScoreStride = kPanel + kWidth;
#if defined(WM_ISA_avx512)
constexpr int kValueVectors = 8;  // of a row of V in registers
#else
constexpr int kValueVectors = 4;
#endif

bool in_lanes(Index rows) {
  return rows >= kLanesFrom;
}
bool in_pairs(const Shape& shape, Index rows) {
  return !in_lanes(rows) && shape.cache_element == Element::bf16 && shape.head_dim % (2 * kWidth) == 0;
}

/// What a stream works in.
struct Workspace {
  float *queries, *scores, *correction, *keys, *values;
  float *maximum, *sum;  ///< of every head; lanes beyond the last row are computed, too
  Index padded;          ///< a packed row's length
  Index head_rows;       ///< a head's floats of maximum, sum and correction
  Index head_scores;     ///< a head's floats of scores
  Index head_queries;    ///< a head's floats of queries
  Index score_stride;    ///< rows of scores where the keys are in the lanes
  bool pack_keys, pack_values;
  Index total;

  Workspace(const Shape& shape, Index rows, Index heads, float* scratch) {
    const bool lanes = in_lanes(rows);
    const bool whole = shape.head_dim % kWidth == 0;
    const bool wide = shape.cache_element == Element::fp32;
    padded = round_up(shape.head_dim, kRowPadding);
    score_stride = round_up(shape.block, kWidth) + 2 * kWidth;
    pack_keys = lanes ? !wide : !whole;
    pack_values = lanes ? !(wide && whole) : !whole;
    head_rows = round_up(rows, kWidth);
    head_queries = head_rows * padded;
    Pieces pieces(scratch);
    queries = pieces.take<float>(heads * head_queries);
    head_scores = lanes ? 0 : rows * score_stride;
    scores = pieces.take<float>(lanes ? shape.block * kScoreStride : heads * head_scores);
    correction = pieces.take<float>(heads * head_rows);
    maximum = pieces.take<float>(heads * head_rows);
    sum = pieces.take<float>(heads * head_rows);
    keys = pieces.take<float>(pack_keys ? shape.block * padded : 0);
    values = pieces.take<float>(pack_values ? shape.block * padded : 0);
    total = pieces.total();
  }
};

/// Keys that row `row` (counted over the whole group) sees.
WM_INLINE Index limit_of(const Stream& stream, Index row) {
  const Shape& shape = *stream.shape;
  if (!shape.causal) return stream.length;
  return max_of(stream.length - shape.tokens + row / shape.group + 1, 0);
}

/// Lane i becomes the sum of vector i's lanes.
WM_INLINE Vec sums_of(Vec (&v)[kWidth]) {
#pragma GCC unroll 4
  for (int step = kWidth / 2; step > 0; step /= 2) {
    IntVec low{}, high{};
#pragma GCC unroll 16
    for (int j = 0; j < kWidth; ++j) {
      low[j] = (j & step) == 0 ? j : kWidth + j - step;
      high[j] = (j & step) == 0 ? j + step : kWidth + j;
    }
#pragma GCC unroll 16
    for (int i = 0; i < step; ++i) {
      v[i] = __builtin_shuffle(v[i], v[i + step], low) + __builtin_shuffle(v[i], v[i + step], high);
    }
  }
  return v[0];
}

/// The products of one row of K and one of Q, by lanes. NV: vectors of a row, 0 for as many as `vectors` says.
template <int NV, class T>
WM_INLINE Vec products(const T* k, const float* q, Index vectors) {
  if constexpr (NV == 0 && !kInPairs<T>) {
    Vec sum = load(k) * load(q);
    for (Index v = 1; v < vectors; ++v) sum = fma(load(k + v * kWidth), load(q + v * kWidth), sum);
    return sum;
  } else {
    const Index count = NV == 0 ? vectors : NV;
    Vec first, second;
    load_two(k, first, second);
    Vec even = first * load(q);
    Vec odd = second * load(q + kWidth);
#pragma GCC unroll 16
    for (Index v = 2; v < count; v += 2) {
      load_two(k + v * kWidth, first, second);
      even = fma(first, load(q + v * kWidth), even);
      odd = fma(second, load(q + (v + 1) * kWidth), odd);
    }
    return even + odd;
  }
}

/// scores[r][key] = q_r . k_key; what a last vector has beyond `count` is 0.
template <int NV, class T>
[[gnu::noinline]] void score(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                             Index rows, float* scores, Index score_stride, Ahead ahead) {
  const Index row_bytes = stride * static_cast<Index>(sizeof(T));
  const Index asked_bytes = (NV == 0 ? vectors : NV) * kWidth * static_cast<Index>(sizeof(T));
  Index key = 0;
  for (; key + kWidth <= count; key += kWidth) {
    const char* asked = nullptr;
    for (Index r = 0; r < rows; ++r) {
      Vec lanes[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        if (r == 0 && ahead.rows != 0) {
          if (i % kAskRows == 0) asked = rows_ahead(ahead, k, stride, count, key + i);
          ask_for(asked + i % kAskRows * row_bytes, asked_bytes);
        }
        lanes[i] = products<NV>(k + (key + i) * stride, q + r * q_stride, vectors);
      }
      store(scores + r * score_stride + key, sums_of(lanes));
    }
  }
  if (key == count) return;
  for (Index r = 0; r < rows; ++r) {
    Vec lanes[kWidth] = {};
    for (Index i = 0; key + i < count; ++i) {
      lanes[i] = products<NV>(k + (key + i) * stride, q + r * q_stride, vectors);
    }
    store(scores + r * score_stride + key, sums_of(lanes));
  }
}

template <class T>
WM_INLINE void score_any(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                         Index rows, float* scores, Index score_stride, Ahead ahead) {
  const auto run = vectors == 4 ? score<4, T> : vectors == 8 ? score<8, T> : vectors == 16 ? score<16, T> : score<0, T>;
  run(k, stride, count, q, q_stride, vectors, rows, scores, score_stride, ahead);
}

/// o[i] = scale[i] * o[i] + sum over keys of p[i][key] v[key], for MR rows and NV vectors of columns.
template <int MR, int NV, class T>
[[gnu::noinline]] void add_values(const float* p, Index p_stride, const T* v, Index stride, Index count, float* o,
                                  Index o_stride, const float* scale, Ahead ahead) {
  constexpr Index kAskedBytes = NV * kWidth * static_cast<Index>(sizeof(T));
  const Index row_bytes = stride * static_cast<Index>(sizeof(T));
  Vec acc[MR][NV];
#pragma GCC unroll 2
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < NV; ++c) acc[i][c] = Vec{};
  }
  const auto add_row = [&](Index key) WM_INLINE_LAMBDA {
    Vec weight[MR];
#pragma GCC unroll 2
    for (int i = 0; i < MR; ++i) weight[i] = broadcast(p[i * p_stride + key]);
    const T* const row = v + key * stride;
#pragma GCC unroll 8
    for (int c = 0; c < NV; c += 2) {
      Vec value[2];
      if constexpr (NV == 1) {
        value[0] = load(row);
      } else {
        load_two(row + c * kWidth, value[0], value[1]);
      }
#pragma GCC unroll 2
      for (int i = 0; i < MR; ++i) {
        acc[i][c] = fma(weight[i], value[0], acc[i][c]);
        if constexpr (NV > 1) acc[i][c + 1] = fma(weight[i], value[1], acc[i][c + 1]);
      }
    }
  };
  Index key = 0;
  for (; key + kAskRows <= count; key += kAskRows) {
    const char* const asked = rows_ahead(ahead, v, stride, count, key);
#pragma GCC unroll 4
    for (Index i = 0; i < kAskRows; ++i) {
      if (ahead.rows != 0) ask_for(asked + i * row_bytes, kAskedBytes);
      add_row(key + i);
    }
  }
  for (; key < count; ++key) add_row(key);
#pragma GCC unroll 2
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < NV; ++c) {
      float* const at = o + i * o_stride + c * kWidth;
      store(at, fma(load(at), broadcast(scale[i]), acc[i][c]));
    }
  }
}

template <class T>
WM_INLINE void add_values_any(const float* p, Index p_stride, const T* v, Index stride, Index count, float* o,
                              Index o_stride, const float* scale, Index rows, Index vectors, Ahead ahead) {
  for (Index r = 0; r < rows;) {
    const Index step = rows - r >= 2 ? 2 : 1;
    for (Index c = 0; c < vectors;) {
      const Index rest = vectors - c;
      const auto call = [&]<int NV>() WM_INLINE_LAMBDA {
        const auto run = step == 2 ? add_values<2, NV, T> : add_values<1, NV, T>;
        run(p + r * p_stride, p_stride, v + c * kWidth, stride, count, o + r * o_stride + c * kWidth, o_stride,
            scale + r, ahead);
        ahead.next += NV * kWidth * static_cast<Index>(sizeof(T));
        c += NV;
      };
      if (kValueVectors >= 8 && rest >= 8) {
        call.template operator()<kValueVectors>();
      } else if (rest >= 4) {
        call.template operator()<4>();
      } else if (rest >= 2) {
        call.template operator()<2>();
      } else if constexpr (!kInPairs<T>) {
        call.template operator()<1>();
      }
    }
    ahead.rows = 0;  // once is enough
    r += step;
  }
}

/// A row of scores, keys in the lanes: its probabilities with the running maximum and sum moved on, lanes from `seen`
/// up to `end` (whole vectors) made 0. Returns what the row's o is to be multiplied by.
[[gnu::noinline]] float softmax_row(float* scores, Index seen, Index end, float factor, float* maximum, float* sum) {
  const Index whole = seen / kWidth * kWidth;
  Vec top = broadcast(*maximum);
  for (Index i = 0; i < whole; i += kWidth) top = max(top, load(scores + i));
  if (whole < seen) {
    const IntVec lanes = lane_index() < broadcast_int(static_cast<std::int32_t>(seen - whole));
    const Vec rest = lanes ? load(scores + whole) : broadcast(kMinusInfinity);
    store(scores + whole, rest);
    top = max(top, rest);
  }
  const float highest = reduce_max(top);
  if (highest == kMinusInfinity) {
    for (Index i = 0; i < end; i += kWidth) store(scores + i, Vec{});
    return 1;
  }
  const float shrink = exp2_probability(broadcast((*maximum - highest) * factor))[0];
  Vec total{};
  Index i = 0;
  for (; i < seen; i += kWidth) {
    const Vec p = exp2_probability((load(scores + i) - highest) * factor);
    total += p;
    store(scores + i, p);
  }
  for (; i < end; i += kWidth) store(scores + i, Vec{});
  *maximum = highest;
  *sum = *sum * shrink + reduce_add(total);
  return shrink;
}

/// Keys [key0, key0 + count); the stream's next block starts at next_key0, after its last one that is its length.
struct Block {
  Index key0, count, next_key0;
};

/// Scores to probabilities for all rows of a head.
WM_INLINE void softmax_rows(const Stream& stream, const Workspace& work, const Block& block, Index head) {
  const float factor = stream.shape->scale * kLog2e;
  for (Index r = 0; r < stream.rows; ++r) {
    const Index seen = clamp_of(limit_of(stream, stream.first_row + r) - block.key0, 0, block.count);
    const Index state = head * work.head_rows + r;
    work.correction[state] = softmax_row(work.scores + head * work.head_scores + r * work.score_stride, seen,
                                         round_up(block.count, kWidth), factor, work.maximum + state, work.sum + state);
  }
}

/// One block of keys against rows whose keys are in the lanes. Of a page all heads are read, one after the other.
template <class T>
void block_by_dots(const Stream& stream, const Workspace& work, const Block& block, float* o) {
  const Index count = block.count;
  const Index vectors = stream.shape->head_dim / kWidth;
  const auto next_run = [&](Index run, const void* to, Index key, Index head, const void* then, Index then_key)
                            WM_INLINE_LAMBDA {
                              return head + 1 < stream.heads ? ahead_of<T>(stream, run, to, head + 1, key)
                                                             : ahead_of<T>(stream, run, then, 0, then_key);
                            };
  for_runs<T>(stream, block.key0, count, [&](Index at, const T* k, const T*, Index run) WM_INLINE_LAMBDA {
    const bool last = at + run == count;
    for (Index h = 0; h < stream.heads; ++h) {
      score_any(k + h * stream.head_stride, stream.row_stride, run, work.queries + h * work.head_queries, work.padded,
                vectors, stream.rows, work.scores + h * work.head_scores + at, work.score_stride,
                next_run(run, stream.k, block.key0 + at, h, last ? stream.v : stream.k,
                         last ? block.key0 : block.key0 + at + run));
    }
  });
  for (Index h = 0; h < stream.heads; ++h) softmax_rows(stream, work, block, h);
  for_runs<T>(stream, block.key0, count, [&](Index at, const T*, const T* v, Index run) WM_INLINE_LAMBDA {
    const bool last = at + run == count;
    for (Index h = 0; h < stream.heads; ++h) {
      float* const correction = work.correction + h * work.head_rows;
      add_values_any(work.scores + h * work.head_scores + at, work.score_stride, v + h * stream.head_stride,
                     stream.row_stride, run, o + h * stream.part_head_stride, work.padded, correction, stream.rows,
                     vectors,
                     next_run(run, stream.v, block.key0 + at, h, last ? stream.k : stream.v,
                              last ? block.next_key0 : block.key0 + at + run));
      for (Index r = 0; r < stream.rows; ++r) correction[r] = 1;
    }
  });
}

/// The same for rows that are not whole vectors: they are packed first.
template <class T>
void block_by_packed_dots(const Stream& stream, const Workspace& work, const Block& block, float* o) {
  const Index head_dim = stream.shape->head_dim;
  const Index padded = work.padded;
  for (Index h = 0; h < stream.heads; ++h) {
    for_runs<T>(stream, block.key0, block.count, [&](Index at, const T* k, const T* v, Index run) WM_INLINE_LAMBDA {
      const Index head = h * stream.head_stride;
      pack_rows(k + head, stream.row_stride, run, head_dim, work.keys + at * padded, padded);
      pack_rows(v + head, stream.row_stride, run, head_dim, work.values + at * padded, padded);
    });
    float* const scores = work.scores + h * work.head_scores;
    score_any(work.keys, padded, block.count, work.queries + h * work.head_queries, padded, vectors_of(head_dim),
              stream.rows, scores, work.score_stride, {});
    softmax_rows(stream, work, block, h);
    add_values_any(scores, work.score_stride, work.values, padded, block.count, o + h * stream.part_head_stride, padded,
                   work.correction + h * work.head_rows, stream.rows, vectors_of(head_dim), {});
  }
}

/// S^T of a panel to P^T, lane by lane: maximum, sum and correction of its rows moved on. visible[lane] keys of the
/// block are seen; from `seen_by_all` on lanes differ.
[[gnu::noinline]] void softmax_panel(float* scores, Index keys, Index seen_by_all, const std::int32_t* visible,
                                     Index vectors, float factor, float* maximum, float* sum, float* correction) {
  for (Index v = 0; v < vectors; ++v) {
    float* const column = scores + v * kWidth;
    const Vec before = load(maximum + v * kWidth);
    Vec top = before;
    Index key = 0;
    for (; key < seen_by_all; ++key) top = max(top, load(column + key * kScoreStride));
    if (key < keys) {
      IntVec seen;
      __builtin_memcpy(&seen, visible + v * kWidth, sizeof(seen));
      for (; key < keys; ++key) {
        float* const at = column + key * kScoreStride;
        const Vec s = broadcast_int(static_cast<std::int32_t>(key)) < seen ? load(at) : broadcast(kMinusInfinity);
        store(at, s);
        top = max(top, s);
      }
    }
    const Vec highest = top == broadcast(kMinusInfinity) ? Vec{} : top;  // nothing seen yet: -inf - 0
    const Vec shrink = exp2_probability((before - highest) * factor);
    Vec total{};
    for (key = 0; key < keys; ++key) {
      float* const at = column + key * kScoreStride;
      const Vec p = exp2_probability((load(at) - highest) * factor);
      total += p;
      store(at, p);
    }
    store(maximum + v * kWidth, top);
    store(sum + v * kWidth, fma(load(sum + v * kWidth), shrink, total));
    store(correction + v * kWidth, shrink);
  }
}

/// One block of a head's keys against rows in the lanes.
template <class T>
void block_by_lanes(const Stream& stream, const Workspace& work, const Block& block, Index head, float* o) {
  const Shape& shape = *stream.shape;
  const Index key0 = block.key0, count = block.count;
  const Index at_head = head * stream.head_stride;
  float* const m = work.maximum + head * work.head_rows;
  float* const l = work.sum + head * work.head_rows;
  float* const correction = work.correction + head * work.head_rows;
  const float* const queries = work.queries + head * work.head_queries;
  const Index head_dim = shape.head_dim;
  const float factor = shape.scale * kLog2e;
  const Panels query_panels(vectors_of(stream.rows));
  const Panels value_panels(vectors_of(head_dim));
  if (work.pack_keys || work.pack_values) {
    for_runs<T>(stream, key0, count, [&](Index at, const T* k, const T* v, Index run) WM_INLINE_LAMBDA {
      if (work.pack_keys) {
        pack_rows(k + at_head, stream.row_stride, run, head_dim, work.keys + at * work.padded, work.padded);
      }
      pack_rows(v + at_head, stream.row_stride, run, head_dim, work.values + at * work.padded, work.padded);
    });
  }
  /// Calls body(offset, first row, stride, count) for each piece of the block's fp32 keys (or values).
  const auto for_pieces = [&](bool packed, const float* buffer, bool values, auto&& body) WM_INLINE_LAMBDA {
    if (packed) {
      body(Index{0}, buffer, work.padded, count);
    } else {
      for_runs<float>(stream, key0, count, [&](Index at, const float* k, const float* v, Index run) WM_INLINE_LAMBDA {
        body(at, (values ? v : k) + at_head, stream.row_stride, run);
      });
    }
  };

  for (Index p = 0; p < query_panels.count; ++p) {
    const Index row0 = query_panels.begin(p) * kWidth;
    const Index row_count = min_of(query_panels.size(p) * kWidth, stream.rows - row0);
    const auto seen_by = [&](Index row) WM_INLINE_LAMBDA {
      return clamp_of(limit_of(stream, stream.first_row + row0 + min_of(row, row_count - 1)) - key0, 0, count);
    };
    const Index panel_keys = seen_by(row_count - 1);
    if (panel_keys == 0) continue;
    const Index seen_by_all = seen_by(0);
    std::int32_t visible[kPanel];
    if (seen_by_all < panel_keys) {
      for (Index i = 0; i < kPanel; ++i) visible[i] = static_cast<std::int32_t>(seen_by(i));
    }
    for_vectors(query_panels.size(p), [&]<int NV>() WM_INLINE_LAMBDA {
      for_pieces(work.pack_keys, work.keys, false,
                 [&](Index at, const float* k, Index stride, Index run) WM_INLINE_LAMBDA {
                   for_row_groups<NV>(clamp_of(panel_keys - at, 0, run), [&]<int MR>(Index key) WM_INLINE_LAMBDA {
                     product<MR, NV, ALayout::row_major, CMode::store>(
                         k + key * stride, stride, queries + row0 * head_dim, NV * kWidth, head_dim,
                         work.scores + (at + key) * kScoreStride, kScoreStride, nullptr);
                   });
                 });
    });
    softmax_panel(work.scores, panel_keys, seen_by_all, visible, query_panels.size(p), factor, m + row0, l + row0,
                  correction + row0);
    for_pieces(work.pack_values, work.values, true,
               [&](Index at, const float* v, Index stride, Index run) WM_INLINE_LAMBDA {
                 const Index depth = clamp_of(panel_keys - at, 0, run);
                 if (depth == 0) return;
                 for (Index vp = 0; vp < value_panels.count; ++vp) {
                   const Index column = value_panels.begin(vp) * kWidth;
                   for_vectors(value_panels.size(vp), [&]<int NV>() WM_INLINE_LAMBDA {
                     for_row_groups<NV>(row_count, [&]<int MR>(Index row) WM_INLINE_LAMBDA {
                       product<MR, NV, ALayout::column_major, CMode::scale_add>(
                           work.scores + at * kScoreStride + row, kScoreStride, v + column, stride, depth,
                           o + (row0 + row) * work.padded + column, work.padded, correction + row0 + row);
                     });
                   });
                 }
                 for (Index i = 0; i < row_count; ++i) correction[row0 + i] = 1;
               });
  }
}

/// A row of whole pairs of vectors between the order of memory and that of pairs.
WM_INLINE void split_pairs(float* row, Index length) {
  for (Index at = 0; at < length; at += 2 * kWidth) {
    float mixed[2 * kWidth];
    __builtin_memcpy(mixed, row + at, sizeof(mixed));
    for (Index i = 0; i < kWidth; ++i) {
      row[at + i] = mixed[2 * i];
      row[at + kWidth + i] = mixed[2 * i + 1];
    }
  }
}
WM_INLINE void join_pairs(float* row, Index length) {
  for (Index at = 0; at < length; at += 2 * kWidth) {
    float split[2 * kWidth];
    __builtin_memcpy(split, row + at, sizeof(split));
    for (Index i = 0; i < kWidth; ++i) {
      row[at + 2 * i] = split[i];
      row[at + 2 * i + 1] = split[kWidth + i];
    }
  }
}

/// The queries of a head in fp32: rows as they lie or in pairs' order, or transposed by panels where they go into the
/// lanes.
template <class Q>
void pack_queries(const Stream& stream, const Workspace& work, Index head) {
  const Shape& shape = *stream.shape;
  const Q* const q = static_cast<const Q*>(stream.q) + head * shape.group * stream.q_head_stride;
  float* const queries = work.queries + head * work.head_queries;
  const auto query_row = [&](Index row) WM_INLINE_LAMBDA {
    const Index at = stream.first_row + row;
    return q + at / shape.group * stream.q_token_stride + at % shape.group * stream.q_head_stride;
  };
  if (!in_lanes(stream.rows)) {
    const Index length = round_up(shape.head_dim, kWidth);
    for (Index r = 0; r < stream.rows; ++r) {
      float* const row = queries + r * work.padded;
      pack_rows(query_row(r), 0, 1, shape.head_dim, row, length);
      if (in_pairs(shape, stream.rows)) split_pairs(row, length);
    }
    return;
  }
  const Panels panels(vectors_of(stream.rows));
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    float* const to = queries + row0 * shape.head_dim;
    for (Index i = 0; i < width; ++i) {
      const bool there = row0 + i < stream.rows;
      const Q* const from = there ? query_row(row0 + i) : nullptr;
      for (Index c = 0; c < shape.head_dim; ++c) to[c * width + i] = there ? to_float(from[c]) : 0.0f;
    }
  }
}

template <class T>
void walk(const Stream& stream, const Workspace& work) {
  const Shape& shape = *stream.shape;
  const bool lanes = in_lanes(stream.rows);
  float *o = stream.o, *m = stream.m, *l = stream.l;
  const auto begin = [&]() WM_INLINE_LAMBDA {
    for (Index i = 0; i < stream.heads * work.head_rows; ++i) {
      work.maximum[i] = kMinusInfinity;
      work.sum[i] = 0;
    }
    for (Index h = 0; h < stream.heads; ++h) {
      __builtin_memset(o + h * stream.part_head_stride, 0,
                       static_cast<std::size_t>(stream.rows * work.padded) * sizeof(float));
    }
  };
  const auto finish = [&]() WM_INLINE_LAMBDA {
    for (Index h = 0; h < stream.heads; ++h) {
      for (Index r = 0; r < stream.rows; ++r) {
        m[h * stream.head_stride_ml + r] = work.maximum[h * work.head_rows + r];
        l[h * stream.head_stride_ml + r] = work.sum[h * work.head_rows + r];
        if constexpr (kInPairs<T>) join_pairs(o + h * stream.part_head_stride + r * work.padded, shape.head_dim);
      }
    }
  };
  begin();
  for (Index i = 0; i < stream.blocks; ++i) {
    if (stream.part_a_block && i > 0) {
      finish();
      o += stream.block_step * stream.part_stride;
      m += stream.block_step * stream.row_stride_ml;
      l += stream.block_step * stream.row_stride_ml;
      begin();
    }
    Block block;
    block.key0 = (stream.first_block + i * stream.block_step) * shape.block;
    block.count = min_of(shape.block, stream.length - block.key0);
    block.next_key0 = i + 1 < stream.blocks ? block.key0 + stream.block_step * shape.block : stream.length;
    if constexpr (kInPairs<T>) {
      block_by_dots<T>(stream, work, block, o);
    } else if (lanes) {
      for (Index h = 0; h < stream.heads; ++h) {
        block_by_lanes<T>(stream, work, block, h, o + h * stream.part_head_stride);
      }
    } else if (work.pack_keys) {
      block_by_packed_dots<T>(stream, work, block, o);
    } else {
      block_by_dots<T>(stream, work, block, o);
    }
  }
  finish();
}

}  // namespace

std::int64_t decode_scratch(const Shape& shape, std::int64_t rows, std::int64_t heads) {
  return Workspace(shape, rows, heads, nullptr).total;
}

void decode_stream(const Stream& stream) {
  const Shape& shape = *stream.shape;
  const Workspace work(shape, stream.rows, stream.heads, stream.scratch);
  for_element(shape.query_element, [&]<class Q>(Q*) {
    for (Index h = 0; h < stream.heads; ++h) pack_queries<Q>(stream, work, h);
  });
  if (in_pairs(shape, stream.rows)) {
    walk<Bf16Pairs>(stream, work);
    return;
  }
  for_element(shape.cache_element, [&]<class T>(T*) { walk<T>(stream, work); });
}

}  // namespace warpmeter::attention::WM_ISA
