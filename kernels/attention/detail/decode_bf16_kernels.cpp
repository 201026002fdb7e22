// Scores and sums of the CPU's flash decoding on bf16 operands that are not widened, compiled for AVX512_BF16: its
// vdpbf16ps multiplies 32 pairs of values where a multiply-add has 16 (what its arithmetic does otherwise:
// decode_kernels.hpp, Bf16Products). Beside it no value is widened for each of a group's query rows again.
//
// Keys and values are read row by row as they lie, which is what memory likes. Scores: a key's row is multiplied by up
// to four query rows, whose sums are made by one transposition. Sums: two rows of V are interleaved, so that a pair is
// one column of two keys, and P is rounded to pairs of keys.

#include "kernels/attention/detail/decode_kernels.hpp"
#include "kernels/attention/detail/decode_reads.hpp"
#include "kernels/attention/detail/decode_sums.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using decode_detail::Bf16Rows;

static_assert(kWidth == 16);
constexpr Index kStep = decode_detail::kBf16Step;  // bf16 values of a vector
constexpr Index kVectorBytes = kStep * 2;
/// Values are summed for all query rows before the next ones are read: they stay in the first-level cache.
constexpr Index kChunk = 32;
constexpr int kValueVectors = 4;  // of a row of V in registers, for two query rows

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

/// Scores of `rows` query rows, at most MR. NV: vectors of a row, 0 for as many as k says.
template <int MR, int NV>
[[gnu::noinline]] void score(const Bf16Rows& k, const Half* q, Index rows, float* scores, Index score_stride,
                             Ahead ahead) {
  constexpr int kKeys = kWidth / MR;
  // Copies: what is stored below could be k as far as the compiler knows.
  const Half* const keys = k.first;
  const Index stride = k.stride, count = k.count, vectors = NV == 0 ? k.vectors : NV;
  const Index row_bytes = stride * 2, asked_bytes = vectors * kVectorBytes;
  const Half* queries[MR];
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) queries[r] = q + min_of(r, rows - 1) * vectors * kStep;
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
          sum = add_products(sum, load_words(row + v * kStep), load_words(queries[r] + v * kStep));
        }
        sums[r * kKeys + i] = sum;
      }
    }
    float tile[MR][kKeys];
    const Vec all = sums_of(sums);
    __builtin_memcpy(tile, &all, sizeof(tile));
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      if (r < rows) __builtin_memcpy(scores + r * score_stride + key, tile[r], sizeof(tile[r]));
    }
  }
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

/// What stands in for the row after a last odd key.
alignas(64) constexpr Half kNoRow[kValueVectors * kStep] = {};

/// Keys of a run of values.
struct Chunk {
  Index first, last;
};

/// o[r] = scale[r] * o[r] + sum over a chunk's keys of p[r][key] v[key], for MR query rows and NV vectors of V from
/// `v` on.
template <int MR, int NV>
[[gnu::noinline]] void add_values(const Bf16Rows& rows, const Half* v, const Chunk& chunk, const float* p,
                                  Index p_stride, float* o, Index o_stride, const float* scale, Ahead ahead) {
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
      const auto a = bit_cast_vec<__m512i>(load_words(even + c * kStep));
      const auto b = bit_cast_vec<__m512i>(load_words(odd + c * kStep));
      // Within 128 bits: columns 0 to 3, and 4 to 7.
      const auto low = bit_cast_vec<Words>(_mm512_unpacklo_epi16(a, b));
      const auto high = bit_cast_vec<Words>(_mm512_unpackhi_epi16(a, b));
#pragma GCC unroll 2
      for (int r = 0; r < MR; ++r) {
        acc[r][2 * c] = add_products(acc[r][2 * c], low, weight[r]);
        acc[r][2 * c + 1] = add_products(acc[r][2 * c + 1], high, weight[r]);
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
      add_values<MR, NV>(v, v.first + c * kStep, chunk, p, p_stride, o + c * kStep, o_stride, scale, ahead);
      ahead.next += NV * kVectorBytes;
      c += NV;
    };
    const Index rest = v.vectors - c;
    if (rest >= kValueVectors) {
      call.template operator()<kValueVectors>();
    } else if (rest >= 2) {
      call.template operator()<2>();
    } else {
      call.template operator()<1>();
    }
  }
}

}  // namespace

void decode_bf16_scores(const Bf16Rows& k, const Half* q, Index rows, float* scores, Index score_stride) {
  Ahead ahead = k.ahead;
  for (Index r = 0; r < rows; r += 4) {
    const Index rest = rows - r;
    const auto pick = [&]<int NV>() { return rest == 1 ? score<1, NV> : rest == 2 ? score<2, NV> : score<4, NV>; };
    const auto run = k.vectors == 2   ? pick.template operator()<2>()
                     : k.vectors == 4 ? pick.template operator()<4>()
                     : k.vectors == 8 ? pick.template operator()<8>()
                                      : pick.template operator()<0>();
    run(k, q + r * k.vectors * kStep, rest, scores + r * score_stride, score_stride, ahead);
    ahead.rows = 0;  // once is enough
  }
}

void decode_bf16_values(const Bf16Rows& v, float* p, Index p_stride, Index rows, float* o, Index o_stride,
                        const float* scale) {
  for (Index r = 0; r < rows; ++r) narrow_row(p + r * p_stride, v.count);
  for (Index first = 0; first < v.count; first += kChunk) {
    const Chunk chunk = {first, min_of(first + kChunk, v.count)};
    Ahead ahead = v.ahead;
    for (Index r = 0; r < rows; r += 2) {
      const auto add = rows - r >= 2 ? add_chunk<2> : add_chunk<1>;
      add(v, chunk, p + r * p_stride, p_stride, o + r * o_stride, o_stride, scale + r, ahead);
      ahead.rows = 0;
    }
  }
}

}  // namespace warpmeter::attention::WM_ISA
