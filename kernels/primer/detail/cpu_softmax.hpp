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

/// e^(x - most) for scores near one another, in 16 bits: instead of `most` itself a power of two is taken off, in the
/// same fused multiplication, and the rest is in the factors.
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

#if defined(WM_ISA_avx512)
  // 2^y = 2^n * 2^(j/16) * 2^r, |r| <= 1/32: n and j are what y / 2, rounded to 32nds, ends in, a permutation looks up
  // 2^(j/16) less the j that comes with n, and 2^r is a square and a constant, ((r/2 + kMiddle)^2 + kBelow) / kScale,
  // within 7e-7: four multiplications and four other instructions where the polynomial has six and three.
  WM_INLINE explicit NearExponential(float most) {
    const Vec power = broadcast(__builtin_ceilf(most * kPerE));
    const Vec rest = exp2(fma(broadcast(-most), broadcast(kPerE), power));
    round_ = kRoundHalf - 0.5f * power;
    middle_ = round_ + kMiddle;
    const Vec table = exp2(__builtin_convertvector(lane_index(), Vec) * 0.0625f) * rest * (1.0f / kScale);
    table_ = bit_cast_vec<UintVec>(table) - (bit_cast_vec<UintVec>(lane_index()) << 19);
  }

  WM_INLINE Vec operator()(Vec x) const {
    const Vec rounded = fma(x, broadcast(0.5f * kPerE), round_);
    const Vec v = fma(x, broadcast(0.5f * kPerE), middle_ - rounded);
    const UintVec bits = bit_cast_vec<UintVec>(rounded);
    const UintVec of_table = bit_cast_vec<UintVec>(
        _mm512_maskz_permutexvar_epi32(kAllLanes, bit_cast_vec<__m512i>(bits), bit_cast_vec<__m512i>(table_)));
    return fma(v, v, broadcast(kBelow)) * bit_cast_vec<Vec>(of_table + (bits << 19));
  }

 private:
  static constexpr float kRoundHalf = kRound / 32, kMiddle = 23.0f / 32, kBelow = 0.520258441f, kScale = 1.03686029f;
  Vec round_, middle_;
  UintVec table_;
#else
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
#endif
};

/// e^(a - b) for a <= b.
WM_INLINE float shrunk(float a, float b) {
  return exp_not_positive<float>(broadcast(a - b))[0];
}

/// Stores two vectors, those of bf16 by pairs; y is aligned to kStreamed elements where they go past the cache.
template <class T>
WM_INLINE void store_two(T* y, const Vec (&v)[2], bool past_cache) {
  if constexpr (std::is_same_v<T, Bf16>) {
    store_bits(y, join_pairs(v[0], v[1]), past_cache);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    store_streamed(y, v, past_cache);
  } else {
    for (int u = 0; u < 2; ++u) store_bits(y + u * kWidth, bit_cast_vec<UintVec>(v[u]), past_cache);
  }
}

/// A row of results, written while the next one's scores are raised: y = what the exponentials take the place of, times
/// `factor`. y is null where there is none.
template <class T>
struct RowBefore {
  T* y;
  float factor;
  bool past_cache;
};

/// Whether stores from y on hold up loads from x on in the same loop: a load waits for a store to the same place in
/// another page if that has just been made. Then writing takes the lead by kLead numbers.
template <class T>
WM_INLINE bool hinders(const T* y, const T* x) {
  constexpr std::uintptr_t kPage = 4096, kNear = 256;
  const std::uintptr_t ahead = (reinterpret_cast<std::uintptr_t>(y) - reinterpret_cast<std::uintptr_t>(x)) % kPage;
  return 0 < ahead && ahead < kNear;
}
constexpr std::int64_t kLead = 256;

/// terms[0, n) = e^(x - most) for scores from `least` to `most`, and what was there before is written as results:
/// memory is busy both ways, as in a copy, and with arithmetic going on. Returns sums of the new ones. Of bf16 every
/// two vectors are kept by pairs, as load_two gives them; rows of it that begin within a line do not go past the cache.
/// What lies a little further than `soon`, as x lies before it, is asked for. Without x nothing is raised.
template <class T>
WM_INLINE Vec raise(const T* x, float* terms, std::int64_t n, float most, float least, const T* soon,
                    const RowBefore<T>& before) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T)), kTwo = 2 * kWidth;
  constexpr std::int64_t kEarly = 4096;  // what is asked for last is there when it is needed
  const bool within_line = before.past_cache && unaligned(before.y) > 0;
  const bool past_cache = before.past_cache && !(within_line && std::is_same_v<T, Bf16>);
  Vec sums[2] = {};
  std::int64_t i = 0, lead = 0;  // of the scores, and of writing before them
  const auto by_twos = [&](std::int64_t end, auto exponential, auto raises, auto writes) WM_INLINE_LAMBDA {
    for (; i + kTwo <= end; i += kTwo) {
      Vec old[2], scores[2];
      for (int u = 0; u < 2 && writes; ++u) old[u] = load(terms + i + lead + u * kWidth) * before.factor;
      if (raises) {
        for (std::int64_t at = 0; at < kTwo; at += kLine) ask_for(soon + kEarly + i + at);
        load_two(x + i, scores);
      }
      for (int u = 0; u < 2 && raises; ++u) {
        const Vec term = exponential(scores[u]);
        store(terms + i + u * kWidth, term);
        sums[u] = sums[u] + term;
      }
      if (writes) store_two(before.y + i + lead, old, past_cache);
    }
  };
  const auto some = [&](std::int64_t end) WM_INLINE_LAMBDA {
    for (std::int64_t count; i < end; i += count) {
      count = end - i < kWidth ? end - i : std::int64_t{kWidth};
      if (before.y != nullptr) store_partial(before.y + i, load_some(terms + i, count) * before.factor, count);
      if (x == nullptr) continue;
      const Vec term = keep_lanes(exp_not_positive<T>(load_some(x + i, count) - most), count, 0.0f);
      store_partial(terms + i, term, count);
      sums[0] = sums[0] + term;
    }
  };
  if (past_cache && within_line) some(unaligned(before.y) < n ? unaligned(before.y) : n);
  const auto all = [&](auto exponential) WM_INLINE_LAMBDA {
    constexpr std::true_type kYes;
    constexpr std::false_type kNo;
    if (x == nullptr) return by_twos(n, exponential, kNo, kYes);
    if (before.y == nullptr) return by_twos(n, exponential, kYes, kNo);
    if (hinders(before.y, x) && n - i > kLead) {
      const std::int64_t first = i;
      by_twos(first + kLead, exponential, kNo, kYes);
      i = first;
      lead = kLead;
    }
    by_twos(n - lead, exponential, kYes, kYes);
    by_twos(n, exponential, kYes, kNo);
  };
  if (sizeof(T) == 2 && NearExponential::can(most, least)) all(NearExponential(most));
  all([&](Vec scores) WM_INLINE_LAMBDA { return exp_not_positive<T>(scores - most); });
  some(n);
  return sums[0] + sums[1];
}

/// The last row, after which none is raised.
template <class T>
WM_INLINE void write_row_before(const RowBefore<T>& before, float* terms, std::int64_t n) {
  raise<T>(nullptr, terms, n, 0.0f, 0.0f, nullptr, before);
}

/// Softmax of rows [begin, end), each by tiles, whose exponentials are relative to the maximum so far and are corrected
/// when they are written. kept: kept_floats(cols) floats; `least` is below every score.
template <class T>
WM_INLINE void softmax_rows(const T* x, T* y, std::int64_t begin, std::int64_t end, std::int64_t cols, float least,
                            float* kept, bool past_cache) {
  constexpr std::int64_t kTile = kSoftmaxTileBytes / static_cast<std::int64_t>(sizeof(T));
  float* const most_of = kept + cols;  // each tile's maximum
  float most_before = least, sum_before = 1.0f;
  for (std::int64_t row = begin; row <= end; ++row) {
    float most = least, sum = 0.0f;
    for (std::int64_t first = 0; first < cols; first += kTile) {
      const std::int64_t n = cols - first < kTile ? cols - first : kTile, tile = first / kTile;
      RowBefore<T> before{nullptr, 0.0f, false};
      if (row > begin) {
        before = {y + (row - 1) * cols + first, shrunk(most_of[tile], most_before) / sum_before, past_cache};
      }
      if (row == end) {
        write_row_before(before, kept + first, n);
        continue;
      }
      const T* const from = x + row * cols + first;
      const Range range = range_of_row(from, n);
      const float larger = range.most > most ? range.most : most;
      const Vec sums = raise(from, kept + first, n, larger, range.least, from + kTile, before);
      sum = sum * shrunk(most, larger) + reduce_add(sums);
      most_of[tile] = most = larger;
    }
    most_before = most;
    sum_before = sum;
  }
}

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
