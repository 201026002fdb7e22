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

/// What a stream works in.
struct Workspace {
  float *queries, *scores, *correction, *keys, *values;
  Index padded;        ///< a packed row's length
  Index score_stride;  ///< rows of scores where the keys are in the lanes
  bool pack_keys, pack_values;
  Index total;

  Workspace(const Shape& shape, Index rows, float* scratch) {
    const bool lanes = in_lanes(rows);
    const bool whole = shape.head_dim % kWidth == 0;
    const bool wide = shape.cache_element == Element::fp32;
    padded = round_up(shape.head_dim, kRowPadding);
    score_stride = round_up(shape.block, kWidth) + 2 * kWidth;
    pack_keys = lanes ? !wide : !whole;
    pack_values = lanes ? !(wide && whole) : !whole;
    Pieces pieces(scratch);
    queries = pieces.take<float>(round_up(rows, kWidth) * padded);
    scores = pieces.take<float>(lanes ? shape.block * kScoreStride : rows * score_stride);
    correction = pieces.take<float>(round_up(rows, kWidth));
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

/// Calls body(offset, k row, v row, count) for each piece of keys [first, first + count) that lies in one page.
template <class T, class Body>
WM_INLINE void for_runs(const Stream& stream, Index first, Index count, Body&& body) {
  for (Index done = 0; done < count;) {
    const Index key = first + done;
    const Index row = key % stream.page_size;
    const Index run = min_of(stream.page_size - row, count - done);
    const Index at = stream.pages[key / stream.page_size] * stream.page_stride + row * stream.row_stride;
    body(done, static_cast<const T*>(stream.k) + at, static_cast<const T*>(stream.v) + at, run);
    done += run;
  }
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

/// Rows that will be read next: while one row is worked on, the row of the same index is asked for. Pages end the
/// processor's own looking ahead; with this a paged cache streams as a contiguous one does.
struct Ahead {
  const char* rows = nullptr;
  Index stride = 0;  ///< bytes
  Index lines = 0;   ///< of 64 bytes a row
  Index count = 0;   ///< rows to ask for, the first ones; 0: none
};
template <class T>
WM_INLINE Ahead ahead_of(const Stream& stream, const T* rows) {
  // The processor finds the rows of fp32 itself once it is in their page, and asking for what the cache holds cost up
  // to two fifths. So no row of contiguous memory is asked for, and of a page the first ones.
  constexpr Index kFirstRows = 8;
  const bool wide = sizeof(T) == sizeof(float);
  if (wide && stream.length <= stream.page_size) return {};
  return {reinterpret_cast<const char*>(rows), stream.row_stride * static_cast<Index>(sizeof(T)),
          (stream.shape->head_dim * static_cast<Index>(sizeof(T)) + 63) / 64, wide ? kFirstRows : stream.page_size};
}
WM_INLINE void ask_for(const Ahead& ahead, Index row) {
  if (row >= ahead.count) return;
  const char* const start = ahead.rows + row * ahead.stride;
  for (Index line = 0; line < ahead.lines; ++line) __builtin_prefetch(start + line * 64, 0, 2);
}

/// The products of one row of K and one of Q, by lanes. NV: vectors of a row, 0 for as many as `vectors` says.
template <int NV, class T>
WM_INLINE Vec products(const T* k, const float* q, Index vectors) {
  if constexpr (NV == 0) {
    Vec sum = load(k) * load(q);
    for (Index v = 1; v < vectors; ++v) sum = fma(load(k + v * kWidth), load(q + v * kWidth), sum);
    return sum;
  } else {
    Vec even = load(k) * load(q);
    Vec odd = load(k + kWidth) * load(q + kWidth);
#pragma GCC unroll 16
    for (int v = 2; v < NV; v += 2) {
      even = fma(load(k + v * kWidth), load(q + v * kWidth), even);
      odd = fma(load(k + (v + 1) * kWidth), load(q + (v + 1) * kWidth), odd);
    }
    return even + odd;
  }
}

/// scores[r][key] = q_r . k_key; what a last vector has beyond `count` is 0.
template <int NV, class T>
[[gnu::noinline]] void score(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                             Index rows, float* scores, Index score_stride, Ahead ahead) {
  Index key = 0;
  for (; key + kWidth <= count; key += kWidth) {
    for (Index i = 0; i < kWidth; ++i) ask_for(ahead, key + i);
    for (Index r = 0; r < rows; ++r) {
      Vec lanes[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
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
  Vec acc[MR][NV];
#pragma GCC unroll 2
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < NV; ++c) acc[i][c] = Vec{};
  }
  for (Index key = 0; key < count; ++key) {
    ask_for(ahead, key);
    Vec weight[MR];
#pragma GCC unroll 2
    for (int i = 0; i < MR; ++i) weight[i] = broadcast(p[i * p_stride + key]);
#pragma GCC unroll 8
    for (int c = 0; c < NV; ++c) {
      const Vec value = load(v + c * kWidth);
#pragma GCC unroll 2
      for (int i = 0; i < MR; ++i) acc[i][c] = fma(weight[i], value, acc[i][c]);
    }
    v += stride;
  }
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
        ahead.count = 0;  // once is enough
        c += NV;
      };
      if (kValueVectors >= 8 && rest >= 8) {
        call.template operator()<kValueVectors>();
      } else if (rest >= 4) {
        call.template operator()<4>();
      } else if (rest >= 2) {
        call.template operator()<2>();
      } else {
        call.template operator()<1>();
      }
    }
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

/// One block of keys against rows whose keys are in the lanes. The stream's next block starts at next_key0.
template <class T>
void block_by_dots(const Stream& stream, const Workspace& work, Index key0, Index count, Index next_key0, float* o,
                   float* m, float* l) {
  const Shape& shape = *stream.shape;
  const float factor = shape.scale * kLog2e;
  if (work.pack_keys) {  // then V, too
    for_runs<T>(stream, key0, count, [&](Index at, const T* k, const T* v, Index run) WM_INLINE_LAMBDA {
      pack_rows(k, stream.row_stride, run, shape.head_dim, work.keys + at * work.padded, work.padded);
      pack_rows(v, stream.row_stride, run, shape.head_dim, work.values + at * work.padded, work.padded);
    });
    const Index vectors = vectors_of(shape.head_dim);
    score_any(work.keys, work.padded, count, work.queries, work.padded, vectors, stream.rows, work.scores,
              work.score_stride, {});
  } else {
    for_runs<T>(stream, key0, count, [&](Index at, const T* k, const T* v, Index run) WM_INLINE_LAMBDA {
      score_any(k, stream.row_stride, run, work.queries, work.padded, shape.head_dim / kWidth, stream.rows,
                work.scores + at, work.score_stride, ahead_of(stream, v));
    });
  }
  const Index end = round_up(count, kWidth);
  for (Index r = 0; r < stream.rows; ++r) {
    const Index seen = clamp_of(limit_of(stream, stream.first_row + r) - key0, 0, count);
    work.correction[r] = softmax_row(work.scores + r * work.score_stride, seen, end, factor, m + r, l + r);
  }
  if (work.pack_values) {
    add_values_any(work.scores, work.score_stride, work.values, work.padded, count, o, work.padded, work.correction,
                   stream.rows, vectors_of(shape.head_dim), {});
    return;
  }
  for_runs<T>(stream, key0, count, [&](Index at, const T*, const T* v, Index run) WM_INLINE_LAMBDA {
    Ahead next;
    if (next_key0 + at < stream.length) {
      const Index key = next_key0 + at;
      next =
          ahead_of(stream, static_cast<const T*>(stream.k) + stream.pages[key / stream.page_size] * stream.page_stride +
                               key % stream.page_size * stream.row_stride);
    }
    add_values_any(work.scores + at, work.score_stride, v, stream.row_stride, run, o, work.padded, work.correction,
                   stream.rows, shape.head_dim / kWidth, next);
    for (Index r = 0; r < stream.rows; ++r) work.correction[r] = 1;
  });
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

/// One block of keys against rows in the lanes. `m` and `l` have room for whole vectors.
template <class T>
void block_by_lanes(const Stream& stream, const Workspace& work, Index key0, Index count, float* o, float* m,
                    float* l) {
  const Shape& shape = *stream.shape;
  const Index head_dim = shape.head_dim;
  const float factor = shape.scale * kLog2e;
  const Panels query_panels(vectors_of(stream.rows));
  const Panels value_panels(vectors_of(head_dim));
  if (work.pack_keys || work.pack_values) {
    for_runs<T>(stream, key0, count, [&](Index at, const T* k, const T* v, Index run) WM_INLINE_LAMBDA {
      if (work.pack_keys) {
        pack_rows(k, stream.row_stride, run, head_dim, work.keys + at * work.padded, work.padded);
      }
      pack_rows(v, stream.row_stride, run, head_dim, work.values + at * work.padded, work.padded);
    });
  }
  /// Calls body(offset, first row, stride, count) for each piece of the block's fp32 keys (or values).
  const auto for_pieces = [&](bool packed, const float* buffer, bool values, auto&& body) WM_INLINE_LAMBDA {
    if (packed) {
      body(Index{0}, buffer, work.padded, count);
    } else {
      for_runs<float>(stream, key0, count, [&](Index at, const float* k, const float* v, Index run) WM_INLINE_LAMBDA {
        body(at, values ? v : k, stream.row_stride, run);
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
                         k + key * stride, stride, work.queries + row0 * head_dim, NV * kWidth, head_dim,
                         work.scores + (at + key) * kScoreStride, kScoreStride, nullptr);
                   });
                 });
    });
    softmax_panel(work.scores, panel_keys, seen_by_all, visible, query_panels.size(p), factor, m + row0, l + row0,
                  work.correction + row0);
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
                           o + (row0 + row) * work.padded + column, work.padded, work.correction + row0 + row);
                     });
                   });
                 }
                 for (Index i = 0; i < row_count; ++i) work.correction[row0 + i] = 1;
               });
  }
}

/// The queries in fp32: rows as they lie, or transposed by panels where they go into the lanes.
template <class Q>
void pack_queries(const Stream& stream, const Workspace& work) {
  const Shape& shape = *stream.shape;
  const Q* const q = static_cast<const Q*>(stream.q);
  const auto row_of = [&](Index row) WM_INLINE_LAMBDA {
    const Index at = stream.first_row + row;
    return q + at / shape.group * stream.q_token_stride + at % shape.group * stream.q_head_stride;
  };
  if (!in_lanes(stream.rows)) {
    const Index length = round_up(shape.head_dim, kWidth);
    for (Index r = 0; r < stream.rows; ++r) {
      pack_rows(row_of(r), 0, 1, shape.head_dim, work.queries + r * work.padded, length);
    }
    return;
  }
  const Panels panels(vectors_of(stream.rows));
  for (Index p = 0; p < panels.count; ++p) {
    const Index row0 = panels.begin(p) * kWidth;
    const Index width = panels.size(p) * kWidth;
    float* const to = work.queries + row0 * shape.head_dim;
    for (Index i = 0; i < width; ++i) {
      const bool there = row0 + i < stream.rows;
      const Q* const from = there ? row_of(row0 + i) : nullptr;
      for (Index c = 0; c < shape.head_dim; ++c) to[c * width + i] = there ? to_float(from[c]) : 0.0f;
    }
  }
}

template <class T>
void walk(const Stream& stream, const Workspace& work) {
  const Shape& shape = *stream.shape;
  const bool lanes = in_lanes(stream.rows);
  // Lanes beyond the last row are computed, too: the state of a part is kept here while it grows.
  float maximum[kMostRows + kWidth], sum[kMostRows + kWidth];
  float *o = stream.o, *m = stream.m, *l = stream.l;
  const auto begin = [&]() WM_INLINE_LAMBDA {
    for (Index r = 0; r < round_up(stream.rows, kWidth); ++r) {
      maximum[r] = kMinusInfinity;
      sum[r] = 0;
    }
    __builtin_memset(o, 0, static_cast<std::size_t>(stream.rows * work.padded) * sizeof(float));
  };
  const auto finish = [&]() WM_INLINE_LAMBDA {
    for (Index r = 0; r < stream.rows; ++r) {
      m[r] = maximum[r];
      l[r] = sum[r];
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
    const Index key0 = (stream.first_block + i * stream.block_step) * shape.block;
    const Index count = min_of(shape.block, stream.length - key0);
    if (lanes) {
      block_by_lanes<T>(stream, work, key0, count, o, maximum, sum);
    } else {
      const Index next = i + 1 < stream.blocks ? key0 + stream.block_step * shape.block : stream.length;
      block_by_dots<T>(stream, work, key0, count, next, o, maximum, sum);
    }
  }
  finish();
}

}  // namespace

std::int64_t decode_scratch(const Shape& shape, std::int64_t rows) {
  return Workspace(shape, rows, nullptr).total;
}

void decode_stream(const Stream& stream) {
  const Workspace work(*stream.shape, stream.rows, stream.scratch);
  for_element(stream.shape->query_element, [&]<class Q>(Q*) { pack_queries<Q>(stream, work); });
  for_element(stream.shape->cache_element, [&]<class T>(T*) { walk<T>(stream, work); });
}

}  // namespace warpmeter::attention::WM_ISA
