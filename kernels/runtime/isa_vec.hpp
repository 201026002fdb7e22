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

/// 16 bits of each lane to 32, zeros above, and back. GCC 12 takes seven instructions for what is one here.
WM_INLINE UintVec widen_bits(ShortVec bits) {
#if defined(WM_ISA_avx512)
  return bit_cast_vec<UintVec>(_mm512_maskz_cvtepu16_epi32(kAllLanes, bit_cast_vec<__m256i>(bits)));
#elif defined(WM_ISA_avx2)
  return bit_cast_vec<UintVec>(_mm256_cvtepu16_epi32(bit_cast_vec<__m128i>(bits)));
#else
  return __builtin_convertvector(bits, UintVec);
#endif
}
WM_INLINE ShortVec narrow_bits(UintVec bits) {
#if defined(WM_ISA_avx512)
  return bit_cast_vec<ShortVec>(_mm512_maskz_cvtepi32_epi16(kAllLanes, bit_cast_vec<__m512i>(bits)));
#elif defined(WM_ISA_avx2)
  const auto wide = bit_cast_vec<__m256i>(bits);
  return bit_cast_vec<ShortVec>(_mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
#else
  return __builtin_convertvector(bits, ShortVec);
#endif
}

WM_INLINE Vec widen_bf16(ShortVec bits) {
  return bit_cast_vec<Vec>(widen_bits(bits) << 16);
}

/// The nearest bf16, ties to even, in the upper half of each lane; what is below it is of no meaning. NaN stays NaN.
WM_INLINE UintVec round_bf16(Vec v) {
  const UintVec bits = bit_cast_vec<UintVec>(v);
#if defined(WM_ISA_avx512)  // five instructions, where the plain form below becomes eight
  const __m512i raw = _mm512_castps_si512(v), one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(0x7FFE);
  const __m512i odd = bit_cast_vec<__m512i>(bits >> 16);
  // bits - ~(0x7FFE | (odd & 1)) is bits + 0x7FFF + (odd & 1); 0x15 is ~(c | (a & b)).
  const __m512i up = _mm512_maskz_ternarylogic_epi32(kAllLanes, odd, one, most, 0x15);
  const __m512i rounded = bit_cast_vec<__m512i>(bits - bit_cast_vec<UintVec>(up));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return bit_cast_vec<UintVec>(_mm512_mask_or_epi32(rounded, nan, raw, _mm512_set1_epi32(0x400000)));
#else
  const UintVec rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return v == v ? rounded : bits | 0x400000u;
#endif
}

/// To nearest even; NaN stays NaN.
WM_INLINE ShortVec narrow_bf16(Vec v) {
  return narrow_bits(round_bf16(v) >> 16);
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

/// Two vectors to 16 bits, those of `low` first, in the bits of one.
WM_INLINE UintVec join(ShortVec low, ShortVec high) {
#if defined(WM_ISA_avx512)
  const __m512i wide = _mm512_castsi256_si512(bit_cast_vec<__m256i>(low));
  return bit_cast_vec<UintVec>(_mm512_maskz_inserti64x4(0xFF, wide, bit_cast_vec<__m256i>(high), 1));
#elif defined(WM_ISA_avx2)
  return bit_cast_vec<UintVec>(_mm256_set_m128i(bit_cast_vec<__m128i>(high), bit_cast_vec<__m128i>(low)));
#else
  const ShortVec both[2] = {low, high};
  UintVec bits;
  __builtin_memcpy(&bits, both, sizeof(bits));
  return bits;
#endif
}
WM_INLINE UintVec narrow_fp16(Vec low, Vec high) {
  return join(narrow_fp16(low), narrow_fp16(high));
}
WM_INLINE UintVec narrow_bf16(Vec low, Vec high) {
#if defined(WM_ISA_avx512)
  UintVec upper;  // 1, 3, 5, ...: the upper halves of the 32-bit lanes of both
  for (unsigned i = 0; i < kWidth; ++i) upper[i] = (4 * i + 3) << 16 | (4 * i + 1);
  return bit_cast_vec<UintVec>(_mm512_permutex2var_epi16(
      bit_cast_vec<__m512i>(round_bf16(low)), bit_cast_vec<__m512i>(upper), bit_cast_vec<__m512i>(round_bf16(high))));
#else
  return join(narrow_bf16(low), narrow_bf16(high));
#endif
}

}  // namespace warpmeter::vec::WM_ISA
