#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Vectors of floats and their 16-bit conversions, for files that warpmeter_isa_variants() compiles once an instruction
/// set.
///
/// Everything lives in a namespace named by WM_ISA (avx512, avx2, generic) and is always inlined, so that the copies
/// of one program never meet. For the same reason such files keep away from inline functions of the standard library
/// (std::vector, std::function): the linker keeps one copy of those, perhaps the one with the wider instructions.
#ifndef WM_ISA
#define WM_ISA generic
#define WM_ISA_generic 1
#endif

#define WM_INLINE [[gnu::always_inline]] inline
#define WM_INLINE_LAMBDA __attribute__((always_inline))  // after a lambda's parameters

namespace warpmeter::vec::WM_ISA {

#if defined(WM_ISA_avx512)
inline constexpr int kWidth = 16;
// GCC 12 calls the unmasked forms' undefined source an uninitialized variable; a full zeroing mask costs nothing.
inline constexpr __mmask16 kAllLanes = 0xFFFF;
#elif defined(WM_ISA_avx2)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

/// kWidth floats, 32-bit integers, 16-bit integers. Arithmetic, comparisons (lanes of 0 or -1) and `mask ? a : b` are
/// the compiler's own (GCC vector extensions).
using Vec = float __attribute__((vector_size(kWidth * 4)));
using IntVec = std::int32_t __attribute__((vector_size(kWidth * 4)));
using UintVec = std::uint32_t __attribute__((vector_size(kWidth * 4)));
using ShortVec = std::uint16_t __attribute__((vector_size(kWidth * 2)));

template <class To, class From>
WM_INLINE To bit_cast_vec(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// --- conversions ---------------------------------------------------------------------------------------------------

WM_INLINE Vec widen_bf16(ShortVec bits) {
  return bit_cast_vec<Vec>(__builtin_convertvector(bits, UintVec) << 16);
}

/// To nearest even; NaN stays NaN.
WM_INLINE ShortVec narrow_bf16(Vec v) {
  const UintVec bits = bit_cast_vec<UintVec>(v);
  const UintVec rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const UintVec quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded, ShortVec);
}

WM_INLINE Vec widen_fp16(ShortVec bits) {
#if defined(WM_ISA_avx512)
  return _mm512_maskz_cvtph_ps(kAllLanes, bit_cast_vec<__m256i>(bits));
#elif defined(WM_ISA_avx2)
  return _mm256_cvtph_ps(bit_cast_vec<__m128i>(bits));
#else
  // Shifted into a float's place the exponent is 112 too small; a multiplication puts subnormals right as well.
  const UintVec wide = __builtin_convertvector(bits, UintVec);
  const UintVec magnitude = (wide & 0x7FFFu) << 13;
  const UintVec finite = bit_cast_vec<UintVec>(bit_cast_vec<Vec>(magnitude) * 0x1p112f);
  const UintVec value = magnitude >= 0x0F800000u ? (magnitude | 0x7F800000u) : finite;
  return bit_cast_vec<Vec>(value | ((wide & 0x8000u) << 16));
#endif
}

/// To nearest even, overflow to infinity, subnormals kept; NaN stays NaN.
WM_INLINE ShortVec narrow_fp16(Vec v) {
#if defined(WM_ISA_avx512)
  return bit_cast_vec<ShortVec>(_mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(WM_ISA_avx2)
  return bit_cast_vec<ShortVec>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const UintVec bits = bit_cast_vec<UintVec>(v);
  const UintVec magnitude = bits & 0x7FFFFFFFu;
  const UintVec normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 1/2 puts a subnormal's bits at the end of the mantissa, rounded by the addition itself.
  const UintVec small = bit_cast_vec<UintVec>(bit_cast_vec<Vec>(magnitude) + 0.5f) - 0x3F000000u;
  UintVec half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477FF000u ? 0x7C00u + UintVec{} : half;
  half = magnitude > 0x7F800000u ? 0x7E00u + UintVec{} : half;
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000u), ShortVec);
#endif
}

}  // namespace warpmeter::vec::WM_ISA
