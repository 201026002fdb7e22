#pragma once

#include <cstdint>

#include "kernels/attention/detail/flash_kernels.hpp"
#include "kernels/runtime/isa_math.hpp"

/// Register-blocked products and packing for the CPU flash attention; included only by files that
/// warpmeter_isa_variants() compiles. All matrices are fp32.
///
/// A product C (+)= A B keeps kRowsOf<NV> x NV vectors of C in registers; each step over the inner dimension loads NV
/// vectors of a row of B and broadcasts one element of A for each row. A is read with either index contiguous, so P^T
/// and dS^T need no transposing; B's rows are contiguous.
namespace warpmeter::attention::WM_ISA {

using namespace vec::WM_ISA;  // NOLINT: vectors, which all kernels around flash are written in

using Index = std::int64_t;
using flash_detail::Element;

/// Vectors of one column panel at most, and the rows that fill the registers beside them.
#if defined(WM_ISA_avx512)
inline constexpr int kMaxVectors = 4;
template <int NV>
inline constexpr int kRowsOf = NV == 4   ? 6
                               : NV == 3 ? 8
                               : NV == 2 ? 12
                                         : 16;
#elif defined(__aarch64__)
inline constexpr int kMaxVectors = 4;
template <int NV>
inline constexpr int kRowsOf = NV == 4   ? 6
                               : NV == 3 ? 8
                               : NV == 2 ? 12
                                         : 16;
#else
inline constexpr int kMaxVectors = 2;
template <int NV>
inline constexpr int kRowsOf = NV == 2 ? 6 : 8;
#endif
inline constexpr Index kPanel = static_cast<Index>(kMaxVectors) * kWidth;

WM_INLINE Index min_of(Index a, Index b) {
  return a < b ? a : b;
}
WM_INLINE Index max_of(Index a, Index b) {
  return a > b ? a : b;
}
WM_INLINE Index clamp_of(Index value, Index low, Index high) {
  return min_of(max_of(value, low), high);
}
WM_INLINE Index vectors_of(Index columns) {
  return (columns + kWidth - 1) / kWidth;
}
WM_INLINE Index round_up(Index value, Index step) {
  return (value + step - 1) / step * step;
}

/// Deals out the scratch of a block, each piece from a cache line on. Without scratch it counts only, so that one
/// description of a workspace gives its size and its pointers.
class Pieces {
 public:
  WM_INLINE explicit Pieces(float* scratch) : scratch_(scratch) {}
  template <class T>
  WM_INLINE T* take(Index count) {
    constexpr Index kLine = 64 / sizeof(float);
    float* const here = scratch_ == nullptr ? nullptr : scratch_ + total_;
    total_ += round_up((count * static_cast<Index>(sizeof(T)) + 3) / 4, kLine);
    return reinterpret_cast<T*>(here);
  }
  WM_INLINE Index total() const { return total_; }  ///< floats

 private:
  float* scratch_;
  Index total_ = 0;
};

/// Splits `total` vectors into panels of at most kMaxVectors, as even as can be: 5 are 3 + 2, not 4 + 1.
struct Panels {
  Index total, count;
  WM_INLINE explicit Panels(Index vectors) : total(vectors), count((vectors + kMaxVectors - 1) / kMaxVectors) {}
  WM_INLINE Index begin(Index panel) const { return total * panel / count; }
  WM_INLINE Index size(Index panel) const { return begin(panel + 1) - begin(panel); }
};

/// 2^x for x <= 0 (a little above is fine): relative error 1.5e-7, 0 far below, NaN for NaN.
WM_INLINE Vec exp2_probability(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  constexpr float kSmallest = -125.0f;
#if !defined(WM_ISA_avx512)
  const Vec unbounded = x;
  x = max(broadcast(kSmallest), x);
#endif
  const Vec shifted = x + kRound;
  const Vec r = x - (shifted - kRound);
  Vec p = broadcast(1.3276472454890609e-3f);
  p = fma(p, r, broadcast(9.675540961325169e-3f));
  p = fma(p, r, broadcast(5.550713092088699e-2f));
  p = fma(p, r, broadcast(2.4022120237350464e-1f));
  p = fma(p, r, broadcast(6.931469440460205e-1f));
  p = fma(p, r, broadcast(1.0f));
  // n into the exponent field. Not VSCALEF: its result for masked scores underflows, which Intel's cores hand to
  // microcode, eight nanoseconds an element.
#if defined(WM_ISA_avx512)
  const __mmask16 kept = _mm512_cmp_ps_mask(x, broadcast(kSmallest), _CMP_NLT_UQ);  // a NaN is kept
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(
      kept, _mm512_castps_si512(p), _mm512_maskz_slli_epi32(kAllLanes, _mm512_castps_si512(shifted), 23)));
#else
  const Vec result = bit_cast_vec<Vec>(bit_cast_vec<UintVec>(p) + (bit_cast_vec<UintVec>(shifted) << 23));
  return unbounded < kSmallest ? Vec{} : result;
#endif
}

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

enum class ALayout { row_major, column_major };
enum class CMode { store, add, scale_add };

/// C[MR][NV vectors] = or += A[MR][depth] B[depth][NV vectors]. Element (i, k) of A is a[i * lda + k] (row_major) or
/// a[k * lda + i]. scale_add multiplies row i of C by row_scale[i] first.
template <int MR, int NV, ALayout layout>
WM_INLINE void multiply(const float* __restrict a, Index lda, const float* __restrict b, Index ldb, Index depth,
                        Vec (&acc)[MR][NV]) {
  for (Index k = 0; k < depth; ++k) {
    Vec row[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) row[v] = load(b + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Vec x = broadcast(layout == ALayout::row_major ? a[i * lda] : a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = fma(x, row[v], acc[i][v]);
    }
    b += ldb;
    a += layout == ALayout::row_major ? 1 : lda;
  }
}

template <int MR, int NV, ALayout layout, CMode mode>
[[gnu::noinline]] void product(const float* __restrict a, Index lda, const float* __restrict b, Index ldb, Index depth,
                               float* __restrict c, Index ldc, const float* __restrict row_scale) {
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec{};
  }
  multiply<MR, NV, layout>(a, lda, b, ldb, depth, acc);
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      // A block's terms are summed before they meet the running sum: over 65,536 of them one by one fp32 would lose
      // its fifth digit.
      float* at = c + i * ldc + v * kWidth;
      if constexpr (mode == CMode::store) {
        store(at, acc[i][v]);
      } else if constexpr (mode == CMode::add) {
        store(at, load(at) + acc[i][v]);
      } else {
        store(at, fma(load(at), broadcast(row_scale[i]), acc[i][v]));
      }
    }
  }
}

/// Calls body.template operator()<MR>(row) over `rows` rows in groups that fill the registers, then in powers of two.
template <int NV, class Body>
WM_INLINE void for_row_groups(Index rows, Body&& body) {
  constexpr int kRows = kRowsOf<NV>;
  Index row = 0;
  for (; row + kRows <= rows; row += kRows) body.template operator()<kRows>(row);
  const Index rest = rows - row;
  if constexpr (kRows > 8) {
    if (rest & 8) {
      body.template operator()<8>(row);
      row += 8;
    }
  }
  if constexpr (kRows > 4) {
    if (rest & 4) {
      body.template operator()<4>(row);
      row += 4;
    }
  }
  if (rest & 2) {
    body.template operator()<2>(row);
    row += 2;
  }
  if (rest & 1) body.template operator()<1>(row);
}

/// Calls body.template operator()<NV>() for the NV of a panel.
template <class Body>
WM_INLINE void for_vectors(Index vectors, Body&& body) {
  if constexpr (kMaxVectors >= 4) {
    if (vectors == 4) return body.template operator()<4>();
    if (vectors == 3) return body.template operator()<3>();
  }
  if (vectors == 2) return body.template operator()<2>();
  body.template operator()<1>();
}

/// C[rows][columns of all panels] (+)= A B over one panel split of B; B's panel p starts at b + p * (its stride).
/// `limits(row, count)` gives the range of the inner dimension that rows [row, row + count) need.
struct Range {
  Index begin, end;
};
template <ALayout layout, CMode mode, class Limits>
WM_INLINE void multiply_rows(const float* a, Index lda, const float* b, Index ldb, Index vectors, float* c, Index ldc,
                             Index rows, Limits&& limits) {
  const Panels panels(vectors);
  for (Index p = 0; p < panels.count; ++p) {
    const Index column = panels.begin(p) * kWidth;
    for_vectors(
        panels.size(p), [&]<int NV>() __attribute__((always_inline)) {
          for_row_groups<NV>(
              rows, [&]<int MR>(Index row) __attribute__((always_inline)) {
                const Range range = limits(row, static_cast<Index>(MR));
                if constexpr (mode == CMode::add) {
                  if (range.begin >= range.end) return;
                }
                const float* a_rows =
                    layout == ALayout::row_major ? a + row * lda + range.begin : a + range.begin * lda + row;
                product<MR, NV, layout, mode>(a_rows, lda, b + range.begin * ldb + column, ldb,
                                              max_of(range.end - range.begin, 0), c + row * ldc + column, ldc, nullptr);
              });
        });
  }
}

// --- packing -------------------------------------------------------------------------------------------------------

/// Swaps rows and columns of kWidth vectors.
WM_INLINE void transpose(Vec (&rows)[kWidth]) {
#pragma GCC unroll 4
  for (int step = kWidth / 2; step > 0; step /= 2) {
    IntVec low{}, high{};
#pragma GCC unroll 16
    for (int j = 0; j < kWidth; ++j) {
      low[j] = (j & step) == 0 ? j : kWidth + j - step;
      high[j] = (j & step) == 0 ? j + step : kWidth + j;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if ((i & step) == 0) {
        const Vec a = rows[i], b = rows[i + step];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + step] = __builtin_shuffle(a, b, high);
      }
    }
  }
}

/// to[k * ld + row] = from[row][k] for k < head_dim, rows padded with 0 up to `padded_rows` (whole vectors).
template <class T>
[[gnu::noinline]] void pack_transposed(const T* from, Index stride, Index rows, Index padded_rows, Index head_dim,
                                       float* to, Index ld) {
  for (Index row = 0; row < padded_rows; row += kWidth) {
    for (Index k = 0; k < head_dim; k += kWidth) {
      const Index count = min_of(kWidth, head_dim - k);
      Vec block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        block[i] = Vec{};
        if (row + i < rows) {
          const T* p = from + (row + i) * stride + k;
          block[i] = count == kWidth ? load(p) : load_partial(p, count);
        }
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        if (i < count) store(to + (k + i) * ld + row, block[i]);
      }
    }
  }
}

/// to[row][k] = from[row][k], rows padded with 0 to whole vectors.
template <class T>
[[gnu::noinline]] void pack_rows(const T* from, Index stride, Index rows, Index head_dim, float* to, Index ld) {
  const Index whole = head_dim / kWidth * kWidth;
  for (Index row = 0; row < rows; ++row) {
    const T* p = from + row * stride;
    float* out = to + row * ld;
    for (Index k = 0; k < whole; k += kWidth) store(out + k, load(p + k));
    if (whole < head_dim) store(out + whole, load_partial(p + whole, head_dim - whole));
  }
}

/// to[row][k] = factor * from[row][k] in the result's type.
template <class T>
[[gnu::noinline]] void write_rows(const float* from, Index ld, Index rows, Index head_dim, float factor, T* to,
                                  Index stride) {
  const Index whole = head_dim / kWidth * kWidth;
  for (Index row = 0; row < rows; ++row) {
    const float* p = from + row * ld;
    T* out = to + row * stride;
    for (Index k = 0; k < whole; k += kWidth) store(out + k, load(p + k) * factor);
    if (whole < head_dim) store_partial(out + whole, load(p + whole) * factor, head_dim - whole);
  }
}

/// Calls body with a null pointer of the element type's storage type.
template <class Body>
WM_INLINE void for_element(Element element, Body&& body) {
  switch (element) {
    case Element::fp32:
      return body(static_cast<float*>(nullptr));
    case Element::bf16:
      return body(static_cast<Bf16*>(nullptr));
    case Element::fp16:
      return body(static_cast<Fp16*>(nullptr));
  }
}

/// Keys that query `row` sees.
WM_INLINE Index visible_keys(const flash_detail::Shape& shape, Index row) {
  return shape.causal ? clamp_of(row + 1 + shape.kv_len - shape.seq_len, 0, shape.kv_len) : shape.kv_len;
}
/// The first query that sees key `key`.
WM_INLINE Index first_query(const flash_detail::Shape& shape, Index key) {
  return shape.causal ? clamp_of(key + shape.seq_len - shape.kv_len, 0, shape.seq_len) : 0;
}

/// LSE of a row from the maximum and sum of its exponentials, the scores unscaled; and what its rounding left behind.
WM_INLINE void write_lse(const flash_detail::ForwardBlock& block, Index row, float maximum, float sum) {
  const Index at = block.first + row;
  const float rest_of_sum = __builtin_log2f(sum) * kLn2;
  const float lse = sum == 0 ? -__builtin_inff() : maximum * block.shape.scale + rest_of_sum;
  block.lse[at] = lse;
  if (block.lse_rest == nullptr) return;
  const float rest = __builtin_fmaf(maximum, block.shape.scale, -lse) + rest_of_sum;
  block.lse_rest[at] = lse - lse == 0 ? rest : 0;  // finite
}
/// row_lse and row_rest of a row.
WM_INLINE void write_row_lse(const flash_detail::DeltaBlock& block, Index row) {
  const float lse = block.lse[row];
  block.row_lse[row] = lse == -__builtin_inff() ? __builtin_inff() : lse;
  block.row_rest[row] = block.lse_rest == nullptr ? 0 : -kLog2e * block.lse_rest[row];
}

}  // namespace warpmeter::attention::WM_ISA
