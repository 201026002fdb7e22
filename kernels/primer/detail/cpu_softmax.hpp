#pragma once

#include "kernels/primer/detail/cpu.hpp"
#include "kernels/primer/detail/cpu_softmax_workspace.hpp"

/// What the softmaxes on the CPU do by vectors: scores are raised to exponentials, which are kept in fp32, and written
/// as results.
namespace warpmeter::primer::cpu_tools::WM_ISA {

constexpr float kPerE = 1.44269504f;   // log2(e)
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits

/// 2^r for |r| <= 1/2 is a polynomial with these, minimax but for the 1, within 3e-7, or for results in 16 bits within
/// 3e-6: a result is off by as much as its exponential and the sum, a mean of the others, are, 6e-6 at most, and the
/// check leaves 1e-5 of the largest beside the rounding. A term less is off by 7.5e-5.
constexpr float kTermsOf32[] = {1.32647273e-3f, 9.67151299e-3f, 5.55073358e-2f, 2.40222424e-1f, 6.93147004e-1f, 1.0f};
constexpr float kTermsOf16[] = {9.58285294e-3f, 5.59064262e-2f, 2.40240991e-1f, 6.93124175e-1f, 1.0f};

/// e^x for x <= 0; 0 under -87, NaN for NaN, never subnormal. Half of what exp costs, which takes any x.
template <class T>
WM_INLINE Vec exp_not_positive(Vec x) {
  const Vec shifted = fma(x, broadcast(kPerE), broadcast(kRound));
  const Vec r = fma(x, broadcast(kPerE), kRound - shifted);  // of -inf and the like it is nothing
  constexpr int kTerms = sizeof(T) == 4 ? 6 : 5;
  constexpr const float* kTermsOf = sizeof(T) == 4 ? kTermsOf32 : kTermsOf16;
  Vec p = broadcast(kTermsOf[0]);
#pragma GCC unroll 5
  for (int k = 1; k < kTerms; ++k) p = fma(p, r, broadcast(kTermsOf[k]));
  const UintVec bits = bit_cast_vec<UintVec>(p), exponent = bit_cast_vec<UintVec>(shifted) << 23;
  constexpr float kLeast = kRound - 125.0f;
#if defined(WM_ISA_avx512)  // the zeros cost no instruction
  const __mmask16 kept = _mm512_cmp_ps_mask(shifted, broadcast(kLeast), _CMP_NLT_UQ);
  return bit_cast_vec<Vec>(_mm512_maskz_add_epi32(kept, bit_cast_vec<__m512i>(bits), bit_cast_vec<__m512i>(exponent)));
#else
  return shifted < kLeast ? Vec{} : bit_cast_vec<Vec>(bits + exponent);
#endif
}

/// e^(x - most) for scores near one another, in 16 bits: two instructions less, a tenth of a softmax. Instead of `most`
/// itself a power of two is taken off, in the same fused multiplication, and the rest is in the polynomial.
class NearExponential {
 public:
  /// Whether all scores are so near that none becomes 0 or subnormal, and so small that multiples of log2(e) have
  /// fractions. False where one is NaN.
  [[nodiscard]] WM_INLINE static bool can(float most, float least) {
#if defined(WM_ISA_avx512) || defined(WM_ISA_avx2)
    return most - least < 80.0f && most < 1e5f && least > -1e5f;
#else  // nothing is fused
    return false && most < least;
#endif
  }

  WM_INLINE explicit NearExponential(float most) {
    const Vec power = broadcast(__builtin_ceilf(most * kPerE));
    const Vec rest = exp2(fma(broadcast(-most), broadcast(kPerE), power));
    round_ = kRound - power;
    for (int k = 0; k < 5; ++k) terms_[k] = kTermsOf16[k] * rest;
  }

  WM_INLINE Vec operator()(Vec x) const {
    const Vec shifted = fma(x, broadcast(kPerE), round_);
    const Vec r = fma(x, broadcast(kPerE), round_ - shifted);
    Vec p = terms_[0];
#pragma GCC unroll 4
    for (int k = 1; k < 5; ++k) p = fma(p, r, terms_[k]);
    return bit_cast_vec<Vec>(bit_cast_vec<UintVec>(p) + (bit_cast_vec<UintVec>(shifted) << 23));
  }

 private:
  Vec round_, terms_[5];
};

/// e^(a - b) for a <= b.
WM_INLINE float shrunk(float a, float b) {
  return exp_not_positive<float>(broadcast(a - b))[0];
}

/// terms[0, n) = e^(x - most) for scores from `least` to `most`; returns sums of them. Of bf16 every two vectors are
/// kept by pairs, as load_two gives them and write_terms takes them. What lies as far behind `soon` as x is asked for.
template <class T>
WM_INLINE Vec raise(const T* x, float* terms, std::int64_t n, float most, float least, const T* soon) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  Vec sums[2] = {};
  std::int64_t i = 0;
  const auto by_twos = [&](auto exponential) WM_INLINE_LAMBDA {
    for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
      for (std::int64_t at = 0; at < 2 * kWidth; at += kLine) ask_for(soon + i + at);
      Vec scores[2];
      load_two(x + i, scores);
      for (int u = 0; u < 2; ++u) {
        const Vec term = exponential(scores[u]);
        store(terms + i + u * kWidth, term);
        sums[u] = sums[u] + term;
      }
    }
  };
  if (sizeof(T) == 2 && NearExponential::can(most, least)) by_twos(NearExponential(most));
  by_twos([&](Vec scores) WM_INLINE_LAMBDA { return exp_not_positive<T>(scores - most); });
  for (; i < n; i += kWidth) {
    const std::int64_t count = n - i < kWidth ? n - i : std::int64_t{kWidth};
    const Vec term = keep_lanes(exp_not_positive<T>(load_some(x + i, count) - most), count, 0.0f);
    count < kWidth ? store_partial(terms + i, term, count) : store(terms + i, term);
    sums[0] = sums[0] + term;
  }
  return sums[0] + sums[1];
}

/// y[0, n) = terms * factor, terms as raise leaves them. What lies halfway between two bf16, to one in 2^16 numbers
/// that are themselves off by more, goes away from zero: to even would be two instructions more. Rows of bf16 that
/// begin within a line do not go past the cache.
template <class T>
WM_INLINE void write_terms(const float* terms, T* y, std::int64_t n, float factor, bool past_cache) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    const bool past = past_cache && unaligned(y) == 0;
    for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
      store_bits(y + i, join_pairs(load(terms + i) * factor, load(terms + i + kWidth) * factor), past);
    }
  }
  write_row(y + i, n - i, past_cache, [&](std::int64_t at, std::int64_t count) WM_INLINE_LAMBDA {
    return load_some(terms + i + at, count) * factor;
  });
}

/// A row of softmax_one_read, whose exponentials are kept.
struct KeptRow {
  float* terms;    ///< e^(x - the maximum of its tile and those before)
  float* most_of;  ///< that maximum
  float most;      ///< of the whole row
  float sum;       ///< of e^(x - most)
};

/// softmax_one_read of rows [begin, end). A block is read and its exponentials are kept, then one of the row before is
/// written, and so on: memory is busy both ways, as in a copy, and with arithmetic going on. Exponentials of a tile are
/// relative to the maximum so far, so that a row comes from memory once, and are corrected when they are written. kept:
/// 2 * kept_floats(cols) floats; `least` is below every score.
template <class T>
WM_INLINE void softmax_rows(const T* x, T* y, std::int64_t begin, std::int64_t end, std::int64_t cols, float least,
                            float* kept, bool past_cache) {
  // In 16 bits arithmetic takes longer than memory does, and long loops are best for it.
  constexpr std::int64_t kBlock = sizeof(T) == 4 ? 64 : kSoftmaxTile;
  float* const others = kept + kept_floats(cols);
  KeptRow now{kept, kept + cols, least, 0.0f}, before{others, others + cols, least, 0.0f};
  for (std::int64_t row = begin; row <= end; ++row) {
    now.most = least;
    now.sum = 0.0f;
    for (std::int64_t first = 0; first < cols; first += kSoftmaxTile) {
      const std::int64_t n = cols - first < kSoftmaxTile ? cols - first : kSoftmaxTile, tile = first / kSoftmaxTile;
      const T* const from = x + row * cols + first;
      const Range range = row < end ? range_of_row(from, n) : Range{least, least};
      const float most = range.most > now.most ? range.most : now.most;
      const float factor = row > begin ? shrunk(before.most_of[tile], before.most) / before.sum : 0.0f;
      Vec sums{};
      for (std::int64_t at = 0; at < n; at += kBlock) {
        const std::int64_t count = n - at < kBlock ? n - at : kBlock, place = first + at;
        if (row < end)
          sums = sums + raise(from + at, now.terms + place, count, most, range.least, from + at + kSoftmaxTile);
        if (row > begin) write_terms(before.terms + place, y + (row - 1) * cols + place, count, factor, past_cache);
      }
      now.sum = now.sum * shrunk(now.most, most) + reduce_add(sums);
      now.most_of[tile] = now.most = most;
    }
    const KeptRow last = now;
    now = before;
    before = last;
  }
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
