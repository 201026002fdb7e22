#pragma once

#include "kernels/attention/detail/decode_reads.hpp"
#include "kernels/attention/detail/decode_sums.hpp"

/// Products of a few query rows with keys and values that are read as they lie, in the CPU's flash decoding. Included
/// by one file an instruction set.
///
/// A core looks as far ahead in memory as its queues of instructions and loads reach, and it asks for nothing while it
/// goes over rows again that it has. So where memory is what takes the time, a row of keys or values is read once for
/// up to four query rows, with as little else between two rows as can be (dev/decode_cpu.md).
namespace warpmeter::attention::WM_ISA {

inline constexpr int kGroupRows = 4;  // query rows at once
#if defined(WM_ISA_avx512)
inline constexpr int kValueVectors = 8;  // of a row of V in registers, for two query rows
#else
inline constexpr int kValueVectors = 4;
#endif

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

/// The same for 3 or 4 rows, key after key: each vector of K is loaded once. Up to kWidth - 1 scores more are written.
template <int NV, class T>
[[gnu::noinline]] void score_group(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                                   Index rows, float* scores, Index score_stride, Ahead ahead) {
  constexpr int kKeys = kWidth / kGroupRows;
  constexpr int kStep = kInPairs<T> || (NV > 0 && NV % 2 == 0) ? 2 : 1;
  const Index all = NV == 0 ? vectors : NV;
  const Index asked_bytes = all * kWidth * static_cast<Index>(sizeof(T));
  // A copy: what is stored below could be q as far as the compiler knows.
  Vec queries[kGroupRows][NV == 0 ? 1 : NV];
  const float* rows_of_q[kGroupRows];
  float* to[kGroupRows];
#pragma GCC unroll 4
  for (int r = 0; r < kGroupRows; ++r) {
    const Index row = min_of(r, rows - 1);  // the last one twice: its scores are the same
    rows_of_q[r] = q + row * q_stride;
    to[r] = scores + row * score_stride;
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) queries[r][v] = load(rows_of_q[r] + v * kWidth);
  }
  for (Index key = 0; key < count; key += kKeys) {
    const T* row[kKeys];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) row[i] = k + min_of(key + i, count - 1) * stride;
    if (ahead.rows != 0) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) ask_for(rows_ahead(ahead, k, stride, count, key + i), asked_bytes);
    }
    Vec lanes[kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      Vec sums[kGroupRows] = {};
#pragma GCC unroll 16
      for (Index v = 0; v < all; v += kStep) {
        Vec value[kStep];
        if constexpr (kStep == 2) {
          load_two(row[i] + v * kWidth, value[0], value[1]);
        } else {
          value[0] = load(row[i] + v * kWidth);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kGroupRows; ++r) {
#pragma GCC unroll 2
          for (int j = 0; j < kStep; ++j) {
            const Vec query = NV == 0 ? load(rows_of_q[r] + (v + j) * kWidth) : queries[r][NV == 0 ? 0 : v + j];
            sums[r] = fma(value[j], query, sums[r]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kGroupRows; ++r) lanes[r * kKeys + i] = sums[r];
      __asm__ volatile("");  // the next key's products begin after these
    }
    alignas(64) float tile[kGroupRows][kKeys];
    store(tile[0], sums_of(lanes));
#pragma GCC unroll 4
    for (int r = 0; r < kGroupRows; ++r) __builtin_memcpy(to[r] + key, tile[r], sizeof(tile[r]));
  }
}

template <class T>
WM_INLINE void score_rows(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                          Index rows, float* scores, Index score_stride, Ahead ahead) {
  const auto run = vectors == 4 ? score<4, T> : vectors == 8 ? score<8, T> : vectors == 16 ? score<16, T> : score<0, T>;
  run(k, stride, count, q, q_stride, vectors, rows, scores, score_stride, ahead);
}

/// The same for any number of rows.
template <class T>
[[gnu::noinline]] void score_groups(const T* k, Index stride, Index count, const float* q, Index q_stride,
                                    Index vectors, Index rows, float* scores, Index score_stride, Ahead ahead) {
  const auto run = vectors == 4    ? score_group<4, T>
                   : vectors == 8  ? score_group<8, T>
                   : vectors == 16 ? score_group<16, T>
                                   : score_group<0, T>;
  Index r = 0;
  for (; rows - r > 2; r += kGroupRows) {
    const Index here = min_of(rows - r, kGroupRows);
    run(k, stride, count, q + r * q_stride, q_stride, vectors, here, scores + r * score_stride, score_stride, ahead);
    ahead.rows = 0;  // once is enough
  }
  if (r >= rows) return;
  score_rows(k, stride, count, q + r * q_stride, q_stride, vectors, rows - r, scores + r * score_stride, score_stride,
             ahead);
}
template <class T>
WM_INLINE void score_any(const T* k, Index stride, Index count, const float* q, Index q_stride, Index vectors,
                         Index rows, float* scores, Index score_stride, Ahead ahead) {
  if (rows > 2) {
    score_groups(k, stride, count, q, q_stride, vectors, rows, scores, score_stride, ahead);
  } else {
    score_rows(k, stride, count, q, q_stride, vectors, rows, scores, score_stride, ahead);
  }
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
WM_INLINE void add_by_pairs(const float* p, Index p_stride, const T* v, Index stride, Index count, float* o,
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

#if defined(WM_ISA_avx512)
/// Probabilities of a chunk of keys: [key][row].
using Weights = float[kWidth][kGroupRows];

/// Those of MR rows.
template <int MR>
WM_INLINE void transpose(const float* p, Index p_stride, Weights& weights) {
  const auto row = [&](int r) WM_INLINE_LAMBDA { return r < MR ? load(p + r * p_stride) : Vec{}; };
  // a0 b0 a1 b1 ..., then a0 b0 c0 d0 a1 ...
  IntVec by_one{}, by_two{};
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    by_one[i] = i / 2 + i % 2 * kWidth;
    by_two[i] = i / 4 * 2 + i % 2 + i % 4 / 2 * kWidth;
  }
  const IntVec half = broadcast_int(kWidth / 2);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const IntVec from = i == 0 ? by_one : by_one + half;
    const Vec ab = __builtin_shuffle(row(0), row(1), from), cd = __builtin_shuffle(row(2), row(3), from);
    store(weights[i * kWidth / 2], __builtin_shuffle(ab, cd, by_two));
    store(weights[i * kWidth / 2 + kWidth / 4], __builtin_shuffle(ab, cd, by_two + half));
  }
}
/// A key's weights, of four rows in each 128 bits.
WM_INLINE Vec weights_of(const float (&rows)[kGroupRows]) {
  return _mm512_maskz_broadcast_f32x4(kAllLanes, _mm_loadu_ps(rows));
}
/// That of row r in all lanes.
template <int r>
WM_INLINE Vec weight_of(Vec rows) {
  return _mm512_maskz_permute_ps(kAllLanes, rows, r * 0x55);
}

/// Adds a chunk of keys to rows r0 and, of MR, r0 + 1 of o in memory: the two vectors of columns that begin at v and o.
template <int MR, int r0, class T>
WM_INLINE void add_in_memory(const T* v, Index stride, const Weights& weights, float* o, Index o_stride,
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
#pragma GCC unroll 1  // more, and registers run short
  for (int key = 0; key < kWidth; ++key, v += stride) {
    Vec value[2];
    load_two(v, value[0], value[1]);
    const Vec rows = weights_of(weights[key]);
    const Vec weight[2] = {weight_of<r0>(rows), weight_of<r0 + 1>(rows)};
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = fma(weight[r], value[0], sums[r][0]);
      sums[r][1] = fma(weight[r], value[1], sums[r][1]);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    float* const to = o + (r0 + r) * o_stride;
    store(to, sums[r][0]);
    store(to + kWidth, sums[r][1]);
  }
}

/// o[r] = scale[r] * o[r] + sum over keys of p[r][key] v[key] for whole chunks of kWidth keys, MR rows of NV vectors.
/// The sums of what registers do not hold are made two rows at a time and a chunk after the other in memory.
template <int MR, int NV, class T>
[[gnu::noinline]] void add_group(const float* p, Index p_stride, const T* v, Index stride, Index count, Index run,
                                 float* o, Index o_stride, const float* scale, Ahead ahead) {
  constexpr int kHeld = MR * NV <= 24 ? NV : 6;
  constexpr float kOnes[kGroupRows] = {1, 1, 1, 1};
  constexpr Index kAskedBytes = NV * kWidth * static_cast<Index>(sizeof(T));
  const Index row_bytes = stride * static_cast<Index>(sizeof(T));
  Vec held[MR][kHeld];
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kHeld; ++c) held[r][c] = Vec{};
  }
  // A chunk early: narrower reads of what was just stored would wait for the store.
  alignas(64) Weights weights[2];
  transpose<MR>(p, p_stride, weights[0]);
  const float* factor = scale;
  for (Index key = 0; key < count; key += kWidth) {
    const Weights& here = weights[key / kWidth % 2];
    if (key + kWidth < count) transpose<MR>(p + key + kWidth, p_stride, weights[1 - key / kWidth % 2]);
    const T* row = v + key * stride;
    const char* asked = ahead.rows != 0 ? rows_ahead(ahead, v, stride, run, key) : nullptr;
#pragma GCC unroll 1  // more, and registers run short
    for (int i = 0; i < kWidth; ++i, row += stride) {
      if (asked != nullptr) {
        ask_for(asked, kAskedBytes);
        asked += row_bytes;
      }
      const Vec rows = weights_of(here[i]);
      const Vec weight[kGroupRows] = {weight_of<0>(rows), weight_of<1>(rows), weight_of<2>(rows), weight_of<3>(rows)};
#pragma GCC unroll 8
      for (int c = 0; c < kHeld; c += 2) {
        Vec value[2];
        load_two(row + c * kWidth, value[0], value[1]);
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
          held[r][c] = fma(weight[r], value[0], held[r][c]);
          held[r][c + 1] = fma(weight[r], value[1], held[r][c + 1]);
        }
      }
    }
    if constexpr (kHeld < NV) {
      constexpr int c = kHeld * kWidth;
      add_in_memory<MR, 0>(v + key * stride + c, stride, here, o + c, o_stride, factor);
      if constexpr (MR > 2) add_in_memory<MR, 2>(v + key * stride + c, stride, here, o + c, o_stride, factor);
    }
    factor = kOnes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kHeld; ++c) {
      float* const at = o + r * o_stride + c * kWidth;
      store(at, fma(load(at), broadcast(scale[r]), held[r][c]));
    }
  }
}
#endif

#if defined(WM_ISA_avx512)
/// The same for any number of rows of four or eight vectors.
template <class T>
[[gnu::noinline]] void add_groups(const float* p, Index p_stride, const T* v, Index stride, Index count, float* o,
                                  Index o_stride, const float* scale, Index rows, Index vectors, Ahead ahead) {
  constexpr float kOnes[kGroupRows] = {1, 1, 1, 1};
  const Index whole = count / kWidth * kWidth;
  Index r = 0;
  while (whole > 0 && rows - r > 2) {
    const Index rest = rows - r;
    const Index here = rest == 4 || rest > 6 ? 4 : 3;  // five are three and two
    const auto pick = [&]<int MR>() { return vectors == 4 ? add_group<MR, 4, T> : add_group<MR, 8, T>; };
    const auto run = here == 3 ? pick.template operator()<3>() : pick.template operator()<4>();
    float* const to = o + r * o_stride;
    run(p + r * p_stride, p_stride, v, stride, whole, count, to, o_stride, scale + r, ahead);
    ahead.rows = 0;  // once is enough
    if (whole < count) {
      add_by_pairs(p + r * p_stride + whole, p_stride, v + whole * stride, stride, count - whole, to, o_stride, kOnes,
                   here, vectors, Ahead{});
    }
    r += here;
  }
  if (r == rows) return;
  add_by_pairs(p + r * p_stride, p_stride, v, stride, count, o + r * o_stride, o_stride, scale + r, rows - r, vectors,
               ahead);
}
#endif

template <class T>
WM_INLINE void add_values_any(const float* p, Index p_stride, const T* v, Index stride, Index count, float* o,
                              Index o_stride, const float* scale, Index rows, Index vectors, Ahead ahead) {
#if defined(WM_ISA_avx512)
  if (rows > 2 && (vectors == 4 || vectors == 8)) {
    add_groups(p, p_stride, v, stride, count, o, o_stride, scale, rows, vectors, ahead);
    return;
  }
#endif
  add_by_pairs(p, p_stride, v, stride, count, o, o_stride, scale, rows, vectors, ahead);
}

}  // namespace warpmeter::attention::WM_ISA
