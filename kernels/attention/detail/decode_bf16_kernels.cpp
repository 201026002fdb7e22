// Scores and sums of the CPU's flash decoding on bf16 operands that are not widened, compiled for AVX512_BF16: its
// vdpbf16ps multiplies 32 pairs of values where a multiply-add has 16 (what its arithmetic does otherwise:
// decode_kernels.hpp, Bf16Products). Beside it no value is widened for each of a group's query rows again.
//
// Keys and values are read row by row as they lie, which is what memory likes, and with few loads of anything else: a
// core looks as far ahead in memory as its queues of loads and instructions reach, so that what is loaded from a cache
// beside them costs reads under way (dev/decode_cpu.md). Scores: up to four query rows stay in registers, a key's row
// is multiplied by each of them, and one transposition makes their sums. Sums: two rows of V are interleaved, so that a
// pair is one column of two keys, and P is rounded to pairs of keys; what fits of four rows of o stays in registers,
// and for the rest the rows of V that were just read are read again.

#include "kernels/attention/detail/decode_kernels.hpp"
#include "kernels/attention/detail/decode_reads.hpp"
#include "kernels/attention/detail/decode_sums.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using decode_detail::Bf16Rows;

static_assert(kWidth == 16);
constexpr Index kStep = decode_detail::kBf16Step;  // bf16 values of a vector
constexpr Index kVectorBytes = kStep * 2;
constexpr Index kNarrow = 4;   // vectors of a row at most
constexpr int kGroupRows = 4;  // query rows at once
/// Keys whose probabilities are rounded at once, and whose values are summed before the next ones are read.
constexpr int kChunk = kWidth;
constexpr int kPairs = kChunk / 2;
/// The same of wide rows: they stay in the first-level cache for all query rows.
constexpr Index kWideChunk = 32;
constexpr int kWideVectors = 4;  // of a row of V in registers, for two query rows

using Half = std::uint16_t;
using Words = UintVec;  // 16 pairs of bf16

WM_INLINE Words load_words(const void* p) {
  Words v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
WM_INLINE Vec add_products(Vec sum, Words a, Words b) {
  return _mm512_dpbf16_ps(sum, bit_cast_vec<__m512bh>(a), bit_cast_vec<__m512bh>(b));
}

/// Scores of `rows` query rows, at most MR. NV: vectors of a row, 0 for as many as k says. Queries of narrow rows stay
/// in registers.
template <int MR, int NV>
[[gnu::noinline]] void score(const Bf16Rows& k, const Half* q, Index rows, float* scores, Index score_stride,
                             Ahead ahead) {
  constexpr int kKeys = kWidth / MR;
  constexpr bool kHeld = NV > 0 && NV <= kNarrow;
  // Copies: what is stored below could be k as far as the compiler knows.
  const Half* const keys = k.first;
  const Index stride = k.stride, count = k.count, vectors = NV == 0 ? k.vectors : NV;
  const Index row_bytes = stride * 2, asked_bytes = vectors * kVectorBytes;
  const Half* queries[MR];
  float* to[MR];
  Words held[MR][kHeld ? NV : 1];
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const Index at = min_of(r, rows - 1);  // the last one twice: its scores are the same
    queries[r] = q + at * vectors * kStep;
    to[r] = scores + at * score_stride;
    if constexpr (kHeld) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) held[r][v] = load_words(queries[r] + v * kStep);
    }
  }
  for (Index key = 0; key < count; key += kKeys) {
    const char* asked = nullptr;
    Vec sums[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      if (ahead.rows != 0) {
        if (i % kAskRows == 0) asked = rows_ahead(ahead, keys, stride, count, key + i);
        ask_for(asked + i % kAskRows * row_bytes, asked_bytes);
      }
      const Half* const row = keys + min_of(key + i, count - 1) * stride;
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        Vec sum{};
#pragma GCC unroll 8
        for (Index v = 0; v < vectors; ++v) {
          const Words query = kHeld ? held[r][kHeld ? v : 0] : load_words(queries[r] + v * kStep);
          sum = add_products(sum, load_words(row + v * kStep), query);
        }
        sums[r * kKeys + i] = sum;
      }
    }
    alignas(64) float tile[MR][kKeys];  // as is then what the compiler keeps on the stack
    store(tile[0], sums_of(sums));
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) __builtin_memcpy(to[r] + key, tile[r], sizeof(tile[r]));
  }
}

/// Probabilities of a chunk: [pair][row] has two keys.
using Weights = std::uint32_t[kPairs][kGroupRows];

/// Those of MR rows.
template <int MR>
WM_INLINE void narrow(const float* p, Index p_stride, Index keys, Weights& weights) {
  const auto row = [&](int r) WM_INLINE_LAMBDA {
    if (r >= MR) return Vec{};
    return keys == kChunk ? load(p + r * p_stride) : load_partial(p + r * p_stride, keys);
  };
  const auto first = bit_cast_vec<Words>(_mm512_cvtne2ps_pbh(row(1), row(0)));
  const auto second = bit_cast_vec<Words>(_mm512_cvtne2ps_pbh(row(3), row(2)));
  Words low{}, high{};
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    low[i] = static_cast<std::uint32_t>(i / 4 + i % 4 * kPairs);
    high[i] = low[i] + kPairs / 2;
  }
  const auto pairs = __builtin_shuffle(first, second, low), more = __builtin_shuffle(first, second, high);
  __builtin_memcpy(weights[0], &pairs, sizeof(pairs));
  __builtin_memcpy(weights[kPairs / 2], &more, sizeof(more));
}
/// A pair's weight of row r in all lanes.
template <int r>
WM_INLINE Words weight_of(Words rows) {
  constexpr auto kFour = static_cast<_MM_PERM_ENUM>(r * 0x55);
  return bit_cast_vec<Words>(_mm512_maskz_shuffle_epi32(kAllLanes, bit_cast_vec<__m512i>(rows), kFour));
}

/// What stands in for the row after a last odd key.
alignas(64) constexpr Half kNoRow[kWideVectors * kStep] = {};

/// Two rows of V, at a vector of columns.
struct TwoRows {
  Words low, high;  ///< within 128 bits: columns 0 to 3, and 4 to 7
  WM_INLINE TwoRows(const Half* even, const Half* odd) {
    const auto a = bit_cast_vec<__m512i>(load_words(even));
    const auto b = bit_cast_vec<__m512i>(load_words(odd));
    low = bit_cast_vec<Words>(_mm512_unpacklo_epi16(a, b));
    high = bit_cast_vec<Words>(_mm512_unpackhi_epi16(a, b));
  }
};

/// The weights of a pair of keys, of four rows in each 128 bits.
WM_INLINE Words weights_of(const std::uint32_t (&rows)[kGroupRows]) {
  __m128i four;
  __builtin_memcpy(&four, rows, sizeof(four));
  return bit_cast_vec<Words>(_mm512_maskz_broadcast_i32x4(kAllLanes, four));
}

/// Adds `keys` keys, a chunk's at most and all of it where `whole`, to rows r0 and, of MR, r0 + 1 of o in memory: the
/// 32 columns that begin at v and o.
template <int MR, int r0, bool whole>
WM_INLINE void add_in_memory(const Half* v, Index stride, Index keys, const Weights& weights, float* o, Index o_stride,
                             const float* scale) {
  constexpr int kRows = MR - r0 < 2 ? MR - r0 : 2;
  Vec sums[kRows][2];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    const float* const from = o + (r0 + r) * o_stride;
    const Vec factor = broadcast(scale[r0 + r]);
    sums[r][0] = load(from) * factor;
    sums[r][1] = load(from + kWidth) * factor;
  }
  const Index pairs = whole ? kPairs : (keys + 1) / 2;
#pragma GCC unroll 1  // more, and registers run short
  for (Index pair = 0; pair < pairs; ++pair, v += 2 * stride) {
    const TwoRows values(v, whole || 2 * pair + 1 < keys ? v + stride : kNoRow);
    const Words rows = weights_of(weights[pair]);
    const Words first = weight_of<r0>(rows);
    sums[0][0] = add_products(sums[0][0], values.low, first);
    sums[0][1] = add_products(sums[0][1], values.high, first);
    if constexpr (kRows > 1) {
      const Words second = weight_of<r0 + 1>(rows);
      sums[1][0] = add_products(sums[1][0], values.low, second);
      sums[1][1] = add_products(sums[1][1], values.high, second);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    float* const to = o + (r0 + r) * o_stride;
    store(to, sums[r][0]);
    store(to + kWidth, sums[r][1]);
  }
}
/// To all MR rows.
template <int MR, bool whole>
WM_INLINE void add_columns(const Half* v, Index stride, Index keys, const Weights& weights, float* o, Index o_stride,
                           const float* scale) {
  add_in_memory<MR, 0, whole>(v, stride, keys, weights, o, o_stride, scale);
  if constexpr (MR > 2) add_in_memory<MR, 2, whole>(v, stride, keys, weights, o, o_stride, scale);
}

constexpr float kOnes[kGroupRows] = {1, 1, 1, 1};

/// The keys after the last whole chunk.
template <int MR>
[[gnu::noinline]] void add_last(const Bf16Rows& v, const float* p, Index p_stride, float* o, Index o_stride) {
  const Index done = v.count / kChunk * kChunk;
  const Index keys = v.count - done;
  alignas(64) Weights weights;
  narrow<MR>(p + done, p_stride, keys, weights);
  for (Index c = 0; c < v.vectors * kStep; c += kStep) {
    add_columns<MR, false>(v.first + done * v.stride + c, v.stride, keys, weights, o + c, o_stride, kOnes);
  }
}

/// o[r] = scale[r] * o[r] + sum over keys of p[r][key] v[key], for MR rows of NV vectors. The sums of a fourth vector
/// are made two rows at a time and a chunk after the other in memory, those of the others in registers.
template <int MR, int NV>
[[gnu::noinline]] void add_values(const Bf16Rows& v, const float* p, Index p_stride, float* o, Index o_stride,
                                  const float* scale, Ahead ahead) {
  const Index stride = v.stride, count = v.count, row_bytes = stride * 2;
  constexpr Index kAskedBytes = NV * kVectorBytes;
  constexpr int kHeld = NV < 3 ? NV : 3;
  const Half* const first = v.first;
  Vec held[MR][2 * kHeld];
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < 2 * kHeld; ++c) held[r][c] = Vec{};
  }
  // A chunk early: narrower reads of what was just stored would wait for the store.
  alignas(64) Weights weights[2];
  if (count >= kChunk) narrow<MR>(p, p_stride, kChunk, weights[0]);
  const float* factor = scale;
  for (Index key = 0; key + kChunk <= count; key += kChunk) {
    const Weights& here = weights[key / kChunk % 2];
    if (key + 2 * kChunk <= count) narrow<MR>(p + key + kChunk, p_stride, kChunk, weights[1 - key / kChunk % 2]);
    const Half* row = first + key * stride;
    const char* asked = ahead.rows != 0 ? rows_ahead(ahead, first, stride, count, key) : nullptr;
#pragma GCC unroll 1  // more, and registers run short
    for (int pair = 0; pair < kPairs; ++pair, row += 2 * stride) {
      if (asked != nullptr) {
        ask_for(asked, kAskedBytes);
        ask_for(asked + row_bytes, kAskedBytes);
        asked += 2 * row_bytes;
      }
      const Words rows = weights_of(here[pair]);
      const Words weight[kGroupRows] = {weight_of<0>(rows), weight_of<1>(rows), weight_of<2>(rows), weight_of<3>(rows)};
#pragma GCC unroll 8
      for (int c = 0; c < kHeld; ++c) {
        const TwoRows values(row + c * kStep, row + stride + c * kStep);
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
          held[r][2 * c] = add_products(held[r][2 * c], values.low, weight[r]);
          held[r][2 * c + 1] = add_products(held[r][2 * c + 1], values.high, weight[r]);
        }
      }
    }
    if constexpr (kHeld < NV) {
      constexpr Index c = kHeld * kStep;
      add_columns<MR, true>(first + key * stride + c, stride, kChunk, here, o + c, o_stride, factor);
    }
    factor = kOnes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const Vec shrink = broadcast(scale[r]);
#pragma GCC unroll 8
    for (int c = 0; c < 2 * kHeld; ++c) {
      float* const at = o + r * o_stride + c * kWidth;
      store(at, fma(load(at), shrink, held[r][c]));
    }
    if (count >= kChunk) continue;
    for (Index c = 2 * kHeld * kWidth; c < NV * kStep; c += kWidth) {
      store(o + r * o_stride + c, load(o + r * o_stride + c) * shrink);
    }
  }
  if (count % kChunk != 0) add_last<MR>(v, p, p_stride, o, o_stride);
}

/// A row of P to pairs of keys in its own place; what a last odd key is paired with is 0.
WM_INLINE void narrow_row(float* p, Index count) {
  const auto to = reinterpret_cast<char*>(p);
  for (Index at = 0; at < count; at += kStep) {
    const Index here = min_of(count - at, kStep);
    const Vec low = here >= kWidth ? load(p + at) : load_partial(p + at, here);
    const Vec high = here == kStep   ? load(p + at + kWidth)
                     : here > kWidth ? load_partial(p + at + kWidth, here - kWidth)
                                     : Vec{};
    const auto pairs = bit_cast_vec<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_mask_storeu_epi32(to + at * 2, static_cast<__mmask16>((1u << ((here + 1) / 2)) - 1), pairs);
  }
}

/// Keys of a run of wide values.
struct Chunk {
  Index first, last;
};

/// o[r] = scale[r] * o[r] + sum over a chunk's keys of p[r][key] v[key], for MR query rows and NV vectors of V from
/// `v` on.
template <int MR, int NV>
[[gnu::noinline]] void add_wide(const Bf16Rows& rows, const Half* v, const Chunk& chunk, const float* p, Index p_stride,
                                float* o, Index o_stride, const float* scale, Ahead ahead) {
  const Index stride = rows.stride, row_bytes = stride * 2;
  Vec acc[MR][2 * NV];
#pragma GCC unroll 2
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < 2 * NV; ++c) acc[r][c] = Vec{};
  }
  const auto add_pair = [&](Index key, const Half* even, const Half* odd) WM_INLINE_LAMBDA {
    Words weight[MR];
#pragma GCC unroll 2
    for (int r = 0; r < MR; ++r) {
      std::uint32_t pair;
      __builtin_memcpy(&pair, p + r * p_stride + key / 2, sizeof(pair));
      weight[r] = pair + Words{};
    }
#pragma GCC unroll 4
    for (int c = 0; c < NV; ++c) {
      const TwoRows values(even + c * kStep, odd + c * kStep);
#pragma GCC unroll 2
      for (int r = 0; r < MR; ++r) {
        acc[r][2 * c] = add_products(acc[r][2 * c], values.low, weight[r]);
        acc[r][2 * c + 1] = add_products(acc[r][2 * c + 1], values.high, weight[r]);
      }
    }
  };
  const auto add_two = [&](Index key) WM_INLINE_LAMBDA {
    const Half* const row = v + key * stride;
    add_pair(key, row, row + stride);
  };
  Index key = chunk.first;
  for (; key + kAskRows <= chunk.last; key += kAskRows) {
    const char* const asked = rows_ahead(ahead, v, stride, rows.count, key);
#pragma GCC unroll 4
    for (Index i = 0; i < kAskRows; i += 2) {
      if (ahead.rows != 0) {
        ask_for(asked + i * row_bytes, NV * kVectorBytes);
        ask_for(asked + (i + 1) * row_bytes, NV * kVectorBytes);
      }
      add_two(key + i);
    }
  }
  for (; key + 2 <= chunk.last; key += 2) add_two(key);
  if (key < chunk.last) add_pair(key, v + key * stride, kNoRow);
#pragma GCC unroll 2
  for (int r = 0; r < MR; ++r) {
    const Vec factor = broadcast(chunk.first == 0 ? scale[r] : 1.0f);
#pragma GCC unroll 8
    for (int c = 0; c < 2 * NV; ++c) {
      float* const at = o + r * o_stride + c * kWidth;
      store(at, fma(load(at), factor, acc[r][c]));
    }
  }
}

/// The same for all columns.
template <int MR>
[[gnu::noinline]] void add_chunk(const Bf16Rows& v, const Chunk& chunk, const float* p, Index p_stride, float* o,
                                 Index o_stride, const float* scale, Ahead ahead) {
  for (Index c = 0; c < v.vectors;) {
    const auto call = [&]<int NV>() WM_INLINE_LAMBDA {
      add_wide<MR, NV>(v, v.first + c * kStep, chunk, p, p_stride, o + c * kStep, o_stride, scale, ahead);
      ahead.next += NV * kVectorBytes;
      c += NV;
    };
    const Index rest = v.vectors - c;
    if (rest >= kWideVectors) {
      call.template operator()<kWideVectors>();
    } else if (rest >= 2) {
      call.template operator()<2>();
    } else {
      call.template operator()<1>();
    }
  }
}

/// Sums of wide rows, all columns.
void add_wide_rows(const Bf16Rows& v, float* p, Index p_stride, Index rows, float* o, Index o_stride,
                   const float* scale) {
  for (Index r = 0; r < rows; ++r) narrow_row(p + r * p_stride, v.count);
  for (Index first = 0; first < v.count; first += kWideChunk) {
    const Chunk chunk = {first, min_of(first + kWideChunk, v.count)};
    Ahead ahead = v.ahead;
    for (Index r = 0; r < rows; r += 2) {
      const auto add = rows - r >= 2 ? add_chunk<2> : add_chunk<1>;
      add(v, chunk, p + r * p_stride, p_stride, o + r * o_stride, o_stride, scale + r, ahead);
      ahead.rows = 0;
    }
  }
}

}  // namespace

void decode_bf16_scores(const Bf16Rows& k, const Half* q, Index rows, float* scores, Index score_stride) {
  Ahead ahead = k.ahead;
  for (Index r = 0; r < rows; r += kGroupRows) {
    const Index rest = rows - r;
    const auto pick = [&]<int NV>() { return rest == 1 ? score<1, NV> : rest == 2 ? score<2, NV> : score<4, NV>; };
    const auto run = k.vectors == 1   ? pick.template operator()<1>()
                     : k.vectors == 2 ? pick.template operator()<2>()
                     : k.vectors == 3 ? pick.template operator()<3>()
                     : k.vectors == 4 ? pick.template operator()<4>()
                     : k.vectors == 8 ? pick.template operator()<8>()
                                      : pick.template operator()<0>();
    run(k, q + r * k.vectors * kStep, rest, scores + r * score_stride, score_stride, ahead);
    ahead.rows = 0;  // once is enough
  }
}

void decode_bf16_values(const Bf16Rows& v, float* p, Index p_stride, Index rows, float* o, Index o_stride,
                        const float* scale) {
  if (v.vectors > kNarrow) {
    add_wide_rows(v, p, p_stride, rows, o, o_stride, scale);
    return;
  }
  Ahead ahead = v.ahead;
  for (Index r = 0; r < rows;) {
    const Index groups = (rows - r + kGroupRows - 1) / kGroupRows;
    const Index here = (rows - r + groups - 1) / groups;  // five rows are three and two
    const auto pick = [&]<int MR>() {
      return v.vectors == 1   ? add_values<MR, 1>
             : v.vectors == 2 ? add_values<MR, 2>
             : v.vectors == 3 ? add_values<MR, 3>
                              : add_values<MR, 4>;
    };
    const auto run = here == 1   ? pick.template operator()<1>()
                     : here == 2 ? pick.template operator()<2>()
                     : here == 3 ? pick.template operator()<3>()
                                 : pick.template operator()<4>();
    run(v, p + r * p_stride, p_stride, o + r * o_stride, o_stride, scale + r, ahead);
    ahead.rows = 0;
    r += here;
  }
}

}  // namespace warpmeter::attention::WM_ISA
