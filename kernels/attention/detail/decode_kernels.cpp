// A stream of the CPU's flash decoding, compiled once an instruction set.
//
// Two forms. With few query rows (one token without grouped heads: one row) the keys are read as they lie and each
// score is a dot product: 16 keys' products are summed by one transposition instead of 16 horizontal sums; P V is made
// with the columns of V in the lanes. Both read every row from end to end, in order, which is what memory likes, and
// 16-bit rows are widened in registers, or multiplied as they are (Bf16Products). With more rows the queries are in the
// lanes as in the flash forward: S^T = K Q^T has K's rows as they lie, P^T is A of P V.
//
// Scores stay unscaled up to the exponential (see flash_forward_kernels.cpp), and so do the maxima of partial results.

#include "kernels/attention/detail/decode_kernels.hpp"

#include "kernels/attention/detail/decode_dots.hpp"
#include "kernels/attention/detail/decode_reads.hpp"
#include "kernels/attention/detail/decode_softmax.hpp"
#include "kernels/attention/detail/flash_micro.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using decode_detail::Bf16Products;
using decode_detail::Bf16Rows;
using decode_detail::kBf16Step;
using decode_detail::kMostRows;
using decode_detail::kRowPadding;
using decode_detail::Shape;
using decode_detail::Stream;

/// Rows from which queries are in the lanes.
constexpr Index kLanesFrom = kWidth / 2 + 1;
/// Rows from which P is rounded to bf16 where Bf16Products may be used: with fewer, memory takes the time.
constexpr Index kBf16ValuesFrom = 3;

bool in_lanes(Index rows) {
  return rows >= kLanesFrom;
}
bool in_pairs(const Shape& shape, Index rows) {
  return !in_lanes(rows) && shape.cache_element == Element::bf16 && shape.head_dim % (2 * kWidth) == 0;
}

/// How elements of a row of o stand while a stream works.
enum class Order : std::uint8_t { pairs, quads };

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
  const Bf16Products* bf16 = nullptr;  ///< not null: queries are bf16, and so are the products
  bool bf16_values = false;
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

/// Scores of a head's keys [at, at + count) of the block, which begin at `k`.
template <class T>
WM_INLINE void score_run(const Stream& stream, const Workspace& work, Index head, Index at, const T* k, Index count,
                         Ahead ahead) {
  const float* const q = work.queries + head * work.head_queries;
  float* const scores = work.scores + head * work.head_scores + at;
  const Index vectors = stream.shape->head_dim / kWidth;
  if constexpr (kInPairs<T>) {
    if (work.bf16 != nullptr) {
      const Bf16Rows rows = {&k->bits, stream.row_stride, count, stream.shape->head_dim / kBf16Step, ahead};
      work.bf16->scores(rows, reinterpret_cast<const std::uint16_t*>(q), stream.rows, scores, work.score_stride);
      return;
    }
  }
  score_any(k, stream.row_stride, count, q, work.padded, vectors, stream.rows, scores, work.score_stride, ahead);
}
/// Adds their values, which begin at `v`, to the head's rows of o.
template <class T>
WM_INLINE void add_run(const Stream& stream, const Workspace& work, Index head, Index at, const T* v, Index count,
                       float* o, Ahead ahead) {
  float* const p = work.scores + head * work.head_scores + at;
  float* const correction = work.correction + head * work.head_rows;
  const Index vectors = stream.shape->head_dim / kWidth;
  bool added = false;
  if constexpr (kInPairs<T>) {
    if (work.bf16_values) {
      const Bf16Rows rows = {&v->bits, stream.row_stride, count, stream.shape->head_dim / kBf16Step, ahead};
      work.bf16->add_values(rows, p, work.score_stride, stream.rows, o, work.padded, correction);
      added = true;
    }
  }
  if (!added) {
    add_values_any(p, work.score_stride, v, stream.row_stride, count, o, work.padded, correction, stream.rows, vectors,
                   ahead);
  }
  for (Index r = 0; r < stream.rows; ++r) correction[r] = 1;
}

/// One block of keys against rows whose keys are in the lanes. Of a page all heads are read, one after the other.
template <class T>
void block_by_dots(const Stream& stream, const Workspace& work, const Block& block, float* o) {
  const Index count = block.count;
  const auto next_run = [&](Index run, const void* to, Index key, Index head, const void* then, Index then_key)
                            WM_INLINE_LAMBDA {
                              return head + 1 < stream.heads ? ahead_of<T>(stream, run, to, head + 1, key)
                                                             : ahead_of<T>(stream, run, then, 0, then_key);
                            };
  for_runs<T>(stream, block.key0, count, [&](Index at, const T* k, const T*, Index run) WM_INLINE_LAMBDA {
    const bool last = at + run == count;
    for (Index h = 0; h < stream.heads; ++h) {
      score_run(stream, work, h, at, k + h * stream.head_stride, run,
                next_run(run, stream.k, block.key0 + at, h, last ? stream.v : stream.k,
                         last ? block.key0 : block.key0 + at + run));
    }
  });
  for (Index h = 0; h < stream.heads; ++h) softmax_rows(stream, work, block, h);
  for_runs<T>(stream, block.key0, count, [&](Index at, const T*, const T* v, Index run) WM_INLINE_LAMBDA {
    const bool last = at + run == count;
    for (Index h = 0; h < stream.heads; ++h) {
      add_run(stream, work, h, at, v + h * stream.head_stride, run, o + h * stream.part_head_stride,
              next_run(run, stream.v, block.key0 + at, h, last ? stream.k : stream.v,
                       last ? block.next_key0 : block.key0 + at + run));
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

/// The element of a row in memory that stands at `i` of 2 * kWidth.
WM_INLINE Index column_of(Order order, Index i) {
  const Index lane = i % kWidth, second = i / kWidth;
  return order == Order::pairs ? 2 * lane + second : lane / 4 * 8 + second * 4 + lane % 4;
}
/// A row of whole pairs of vectors between the order of memory and `order`.
WM_INLINE void reorder(float* row, Index length, Order order, bool to_memory) {
  for (Index at = 0; at < length; at += 2 * kWidth) {
    float from[2 * kWidth];
    __builtin_memcpy(from, row + at, sizeof(from));
    for (Index i = 0; i < 2 * kWidth; ++i) {
      const Index column = column_of(order, i);
      row[at + (to_memory ? column : i)] = from[to_memory ? i : column];
    }
  }
}

/// Whether Bf16Products make of a row of queries what fp32 arithmetic makes of it.
WM_INLINE bool suits_bf16(const std::uint16_t* q, Index length) {
  constexpr unsigned kHighest = 127 + 64;
  bool suits = true;
  for (Index i = 0; i < length; ++i) {
    const unsigned exponent = q[i] >> 7 & 0xFFu;
    suits &= exponent <= kHighest && (exponent != 0 || (q[i] & 0x7Fu) == 0);
  }
  return suits;
}

template <class Q>
WM_INLINE const Q* query_row(const Stream& stream, Index head, Index row) {
  const Index at = stream.first_row + row, group = stream.shape->group;
  return static_cast<const Q*>(stream.q) + at / group * stream.q_token_stride +
         (head * group + at % group) * stream.q_head_stride;
}

/// The queries of a head in fp32: rows as they lie or in pairs' order, or transposed by panels where they go into the
/// lanes.
template <class Q>
void pack_queries(const Stream& stream, const Workspace& work, Index head) {
  const Shape& shape = *stream.shape;
  float* const queries = work.queries + head * work.head_queries;
  if (!in_lanes(stream.rows)) {
    const Index length = round_up(shape.head_dim, kWidth);
    for (Index r = 0; r < stream.rows; ++r) {
      float* const row = queries + r * work.padded;
      pack_rows(query_row<Q>(stream, head, r), 0, 1, shape.head_dim, row, length);
      if (in_pairs(shape, stream.rows)) reorder(row, length, Order::pairs, false);
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
      const Q* const from = there ? query_row<Q>(stream, head, row0 + i) : nullptr;
      for (Index c = 0; c < shape.head_dim; ++c) to[c * width + i] = there ? to_float(from[c]) : 0.0f;
    }
  }
}

/// The queries of a head for Bf16Products, as they lie; whether they suit.
bool copy_bf16_queries(const Stream& stream, const Workspace& work, Index head) {
  const Index head_dim = stream.shape->head_dim;
  auto* to = reinterpret_cast<std::uint16_t*>(work.queries + head * work.head_queries);
  bool suit = true;
  for (Index r = 0; r < stream.rows; ++r, to += head_dim) {
    const std::uint16_t* const from = &query_row<Bf16>(stream, head, r)->bits;
    suit &= suits_bf16(from, head_dim);
    __builtin_memcpy(to, from, static_cast<std::size_t>(head_dim) * 2);
  }
  return suit;
}

/// Whether terms that count as 0 below 2^-126 could show in a row of sums.
WM_INLINE bool is_tiny(const float* row, Index length) {
  Vec largest{};
  for (Index i = 0; i < length; i += kWidth) largest = max(largest, max(load(row + i), -load(row + i)));
  return reduce_max(largest) < 0x1p-60f;
}

/// Returns whether Bf16Products, where they were taken, gave what fp32 arithmetic would.
template <class T>
bool walk(const Stream& stream, const Workspace& work) {
  const Shape& shape = *stream.shape;
  bool exact = true;
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
        if constexpr (kInPairs<T>) {
          float* const row = o + h * stream.part_head_stride + r * work.padded;
          if (work.bf16_values && work.sum[h * work.head_rows + r] > 0) exact &= !is_tiny(row, shape.head_dim);
          reorder(row, shape.head_dim, work.bf16_values ? Order::quads : Order::pairs, true);
        }
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
  return exact;
}

/// The whole stream by Bf16Products; whether their result is to be kept.
bool walk_bf16(const Stream& stream, Workspace work) {
  for (Index h = 0; h < stream.heads; ++h) {
    if (!copy_bf16_queries(stream, work, h)) return false;
  }
  work.bf16 = stream.shape->bf16;
  work.bf16_values = stream.rows >= kBf16ValuesFrom;
  return walk<Bf16Pairs>(stream, work);
}

}  // namespace

std::int64_t decode_scratch(const Shape& shape, std::int64_t rows, std::int64_t heads) {
  return Workspace(shape, rows, heads, nullptr).total;
}

void decode_stream(const Stream& stream) {
  const Shape& shape = *stream.shape;
  const Workspace work(shape, stream.rows, stream.heads, stream.scratch);
  if (shape.bf16 != nullptr && walk_bf16(stream, work)) return;
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
