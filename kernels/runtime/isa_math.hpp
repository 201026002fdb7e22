#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/runtime/isa_vec.hpp"

/// Arithmetic, loads, stores and exponentials of isa_vec.hpp's vectors; what that says of files compiled once an
/// instruction set holds here.
///
/// Source of exp: argument reduction by Cody and Waite, minimax polynomial after N. Juffa.
namespace warpmeter::vec::WM_ISA {

/// Storage of the 16-bit types: bits only, arithmetic happens in float.
struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

WM_INLINE Vec broadcast(float value) {
  return value - Vec{};
}  // x - 0 keeps -0 and NaN
WM_INLINE IntVec broadcast_int(std::int32_t value) {
  return value + IntVec{};
}

/// 0, 1, 2, ...: compare with broadcast_int(n) to mask the lanes under n.
WM_INLINE IntVec lane_index() {
  IntVec v{};
  for (int i = 0; i < kWidth; ++i) v[i] = i;
  return v;
}

// --- arithmetic ----------------------------------------------------------------------------------------------------

/// a * b + c, one rounding where the instruction set has it.
WM_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(WM_ISA_avx512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(WM_ISA_avx2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// The larger lane by lane; `b` where either is NaN.
WM_INLINE Vec max(Vec a, Vec b) {
#if defined(WM_ISA_avx512)
  return _mm512_maskz_max_ps(kAllLanes, a, b);
#elif defined(WM_ISA_avx2)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

/// The smaller lane by lane; `b` where either is NaN.
WM_INLINE Vec min(Vec a, Vec b) {
#if defined(WM_ISA_avx512)
  return _mm512_maskz_min_ps(kAllLanes, a, b);
#elif defined(WM_ISA_avx2)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

/// Sum of the lanes, by halves: the same bits on every call.
WM_INLINE float reduce_add(Vec v) {
  for (int half = kWidth / 2; half > 0; half /= 2) v = v + __builtin_shuffle(v, lane_index() ^ half);
  return v[0];
}

WM_INLINE float reduce_max(Vec v) {
  for (int half = kWidth / 2; half > 0; half /= 2) v = max(v, __builtin_shuffle(v, lane_index() ^ half));
  return v[0];
}

// --- memory (no alignment asked for) -------------------------------------------------------------------------------

WM_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
WM_INLINE Vec load(const Bf16* p) {
  ShortVec bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return widen_bf16(bits);
}
WM_INLINE Vec load(const Fp16* p) {
  ShortVec bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return widen_fp16(bits);
}

WM_INLINE void store(float* p, Vec v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
WM_INLINE void store(Bf16* p, Vec v) {
  const ShortVec bits = narrow_bf16(v);
  __builtin_memcpy(p, &bits, sizeof(bits));
}
WM_INLINE void store(Fp16* p, Vec v) {
  const ShortVec bits = narrow_fp16(v);
  __builtin_memcpy(p, &bits, sizeof(bits));
}

/// The first `count` lanes from memory, 0 <= count <= kWidth; the others are 0. Touches nothing beyond.
template <class T>
WM_INLINE Vec load_partial(const T* p, std::int64_t count) {
  T lanes[kWidth] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}
/// The first `count` lanes to memory.
template <class T>
WM_INLINE void store_partial(T* p, Vec v, std::int64_t count) {
  T lanes[kWidth];
  store(lanes, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}
#if defined(WM_ISA_avx512)
template <>
WM_INLINE Vec load_partial(const float* p, std::int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), p);
}
template <>
WM_INLINE void store_partial(float* p, Vec v, std::int64_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), v);
}
#endif

WM_INLINE float to_float(float x) {
  return x;
}
WM_INLINE float to_float(Bf16 x) {
  return load_partial(&x, 1)[0];
}
WM_INLINE float to_float(Fp16 x) {
  return load_partial(&x, 1)[0];
}
template <class T>
WM_INLINE T from_float(float x) {
  T result;
  store_partial(&result, broadcast(x), 1);
  return result;
}

// --- exponential ---------------------------------------------------------------------------------------------------

namespace exp_detail {
inline constexpr float kLog2e = 1.442695041f;
inline constexpr float kLn2High = 6.93145752e-1f;  // 15 low bits are zero: n * kLn2High is exact
inline constexpr float kLn2Low = 1.42860677e-6f;
inline constexpr float kRound = 12582912.0f;      // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
inline constexpr float kSmallest = -87.3365448f;  // ln of the smallest normal float
inline constexpr float kLargest = 88.7228394f;

/// exp(r) * 2^n for |r| <= ln(2)/2; `shifted` is n + kRound. -126 <= n <= 128.
WM_INLINE Vec scaled(Vec r, Vec shifted) {
  Vec p = broadcast(1.37805939e-3f);
  p = fma(p, r, broadcast(8.37312452e-3f));
  p = fma(p, r, broadcast(4.16695364e-2f));
  p = fma(p, r, broadcast(1.66664720e-1f));
  p = fma(p, r, broadcast(4.99999851e-1f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  // Into the exponent field: unlike a product with 2^n this reaches n = 128, which is no float, and unlike VSCALEF it
  // takes no microcode assist where the result is subnormal (masked scores: 8 ns an element on Intel, measured).
  return bit_cast_vec<Vec>(bit_cast_vec<UintVec>(p) + (bit_cast_vec<UintVec>(shifted) << 23));
}
}  // namespace exp_detail

/// e^x, within 1.1 units in the last place (2 without fused multiply-add). exp(-inf) = 0, +inf above 88.7228, NaN for
/// NaN; results under the smallest normal float (x < -87.3365) are 0.
WM_INLINE Vec exp(Vec x) {
  using namespace exp_detail;
  const Vec bounded = min(broadcast(89.0f), max(broadcast(kSmallest), x));
  const Vec shifted = fma(bounded, broadcast(kLog2e), broadcast(kRound));
  const Vec n = shifted - kRound;
  const Vec r = fma(n, broadcast(-kLn2Low), fma(n, broadcast(-kLn2High), bounded));
  const Vec result = scaled(r, shifted);
  const Vec above = x <= kLargest ? result : x + __builtin_inff();  // NaN too
  return x < kSmallest ? Vec{} : above;
}

/// 2^x with the same care: 0 under -126, +inf from 128.
WM_INLINE Vec exp2(Vec x) {
  using namespace exp_detail;
  const Vec bounded = min(broadcast(128.0f), max(broadcast(-126.0f), x));
  const Vec shifted = bounded + kRound;
  const Vec fraction = bounded - (shifted - kRound);
  const Vec result = scaled(fraction * 0.693147181f, shifted);
  const Vec above = x < 128.0f ? result : x + __builtin_inff();
  return x < -126.0f ? Vec{} : above;
}

}  // namespace warpmeter::vec::WM_ISA
