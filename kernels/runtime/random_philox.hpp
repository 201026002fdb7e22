#pragma once

#include <cstdint>

/// The random fill's arithmetic, shared by the CPU and CUDA: integer operations and IEEE additions, products and square
/// roots in a fixed order, so that both give the same bits. On the host the including file is compiled without
/// contraction (-ffp-contract=off, the project's default); on the device the *_rn intrinsics are never contracted.
///
/// Sources: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10);
/// Box and Muller 1958; polynomials of Cephes' single precision logf, sinf and cosf (S. Moshier).

#if defined(__CUDACC__)
#define WM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define WM_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace warpmeter::philox {

inline constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
inline constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
inline constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
inline constexpr int kRounds = 10;

struct Words {
  std::uint32_t x0, x1, x2, x3;
};

/// Philox4x32-10 of counter (x0, x1, x2, x3) under the key (k0, k1).
WM_HOST_DEVICE Words philox4x32_10(Words c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMultiplier0) * c.x0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMultiplier1) * c.x2;
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c.x1 ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c.x3 ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

/// The block of four words that holds elements 4 * block .. 4 * block + 3 of a stream.
WM_HOST_DEVICE Words block_words(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t block) {
  return philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        static_cast<std::uint32_t>(stream_id), static_cast<std::uint32_t>(stream_id >> 32)},
                       static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

#if defined(__CUDA_ARCH__)
WM_HOST_DEVICE float add(float a, float b) {
  return __fadd_rn(a, b);
}
WM_HOST_DEVICE float mul(float a, float b) {
  return __fmul_rn(a, b);
}
WM_HOST_DEVICE float root(float a) {
  return __fsqrt_rn(a);
}
WM_HOST_DEVICE std::uint32_t to_bits(float a) {
  return __float_as_uint(a);
}
WM_HOST_DEVICE float from_bits(std::uint32_t a) {
  return __uint_as_float(a);
}
#else
WM_HOST_DEVICE float add(float a, float b) {
  return a + b;
}
WM_HOST_DEVICE float mul(float a, float b) {
  return a * b;
}
WM_HOST_DEVICE float root(float a) {
  return __builtin_sqrtf(a);
}
WM_HOST_DEVICE std::uint32_t to_bits(float a) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &a, sizeof(bits));
  return bits;
}
WM_HOST_DEVICE float from_bits(std::uint32_t a) {
  float value;
  __builtin_memcpy(&value, &a, sizeof(value));
  return value;
}
#endif
/// p * x + c in two roundings: one step of Horner's rule.
WM_HOST_DEVICE float step(float p, float x, float c) {
  return add(mul(p, x), c);
}

/// A word as a number in (0, 1]: (word + 1/2) / 2^32, rounded.
WM_HOST_DEVICE float unit_open(std::uint32_t word) {
  // Both halves are exact and the sum rounds once; a direct conversion of unsigned words does not vectorize everywhere.
  const float high = static_cast<float>(static_cast<std::int32_t>(word >> 16));
  const float low = static_cast<float>(static_cast<std::int32_t>(word & 0xFFFFU));
  const float value = step(high, 65536.0f, low);
  return step(value, 0x1p-32f, 0x1p-33f);
}

/// A word as a number in [0, 1): its upper 24 bits.
WM_HOST_DEVICE float unit_half_open(std::uint32_t word) {
  return mul(static_cast<float>(static_cast<std::int32_t>(word >> 8)), 0x1p-24f);
}

/// ln(x) for normal x > 0, within 1 ulp: ln(2^e * m), m in [sqrt(1/2), sqrt(2)).
WM_HOST_DEVICE float log_positive(float x) {
  constexpr std::uint32_t kSqrtHalf = 0x3F3504F3U;
  const std::uint32_t shifted = to_bits(x) - kSqrtHalf;
  const auto exponent = static_cast<std::int32_t>(shifted) >> 23;
  const float m = from_bits((shifted & 0x007FFFFFU) + kSqrtHalf);
  const float e = static_cast<float>(exponent);
  const float z = add(m, -1.0f);
  const float z2 = mul(z, z);
  float p = 7.0376836292e-2f;
  p = step(p, z, -1.1514610310e-1f);
  p = step(p, z, 1.1676998740e-1f);
  p = step(p, z, -1.2420140846e-1f);
  p = step(p, z, 1.4249322787e-1f);
  p = step(p, z, -1.6668057665e-1f);
  p = step(p, z, 2.0000714765e-1f);
  p = step(p, z, -2.4999993993e-1f);
  p = step(p, z, 3.3333331174e-1f);
  float y = mul(mul(p, z), z2);
  y = step(e, -2.12194440e-4f, y);  // ln 2 = 0.693359375 - 2.12194440e-4
  y = step(z2, -0.5f, y);
  return step(e, 0.693359375f, add(z, y));
}

struct SinCos {
  float sin, cos;
};

/// Sine and cosine of 2 * pi * word / 2^32. The quadrant and the rest come from the integer, so no reduction is lost.
WM_HOST_DEVICE SinCos sin_cos_turn(std::uint32_t word) {
  const std::uint32_t quadrant = (word + 0x20000000U) >> 30;
  const auto rest = static_cast<std::int32_t>(word - (quadrant << 30));   // [-2^29, 2^29)
  const float t = mul(static_cast<float>(rest), 1.4629180792671596e-9f);  // 2 * pi / 2^32: [-pi/4, pi/4]
  const float t2 = mul(t, t);
  float s = -1.9515295891e-4f;
  s = step(s, t2, 8.3321608736e-3f);
  s = step(s, t2, -1.6666654611e-1f);
  s = add(mul(mul(s, t2), t), t);
  float c = 2.443315711809948e-5f;
  c = step(c, t2, -1.388731625493765e-3f);
  c = step(c, t2, 4.166664568298827e-2f);
  c = add(step(t2, -0.5f, mul(mul(c, t2), t2)), 1.0f);
  const bool swap = (quadrant & 1U) != 0;
  const float sine = swap ? c : s;
  const float cosine = swap ? s : c;
  return {from_bits(to_bits(sine) ^ ((quadrant & 2U) << 30)),
          from_bits(to_bits(cosine) ^ (((quadrant + 1U) & 2U) << 30))};
}

/// Two independent standard normal values of two words.
WM_HOST_DEVICE SinCos box_muller(std::uint32_t radius_word, std::uint32_t angle_word) {
  const float log_u = log_positive(unit_open(radius_word));
  const float radius = root(mul(-2.0f, log_u < 0.0f ? log_u : 0.0f));
  const SinCos direction = sin_cos_turn(angle_word);
  return {mul(radius, direction.sin), mul(radius, direction.cos)};
}

/// bf16 bits of `value`, to nearest even. For finite values (an overflow gives infinity).
WM_HOST_DEVICE std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = to_bits(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// fp16 bits of `value`, to nearest even, subnormals and infinity included. For values that are not NaN.
WM_HOST_DEVICE std::uint16_t to_fp16(float value) {
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // Normal results: rebias the exponent by 127 - 15 and round off 13 bits.
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  // Below 2^-14 a unit is 2^-24: adding 1/2 in fp32, whose unit there is 2^-24, rounds to it.
  const std::uint32_t subnormal = to_bits(add(from_bits(magnitude), 0.5f)) - 0x3F000000U;
  const std::uint32_t rounded = magnitude < 0x38800000U ? subnormal : normal;
  const std::uint32_t result = magnitude >= 0x477FF000U ? 0x7C00U : rounded;  // 65520 and above
  return static_cast<std::uint16_t>(sign | result);
}

/// offset + u * scale for u in [0, 1), kept within [least, most] (rounding may leave the interval).
WM_HOST_DEVICE float uniform_value(std::uint32_t word, float scale, float offset, float least, float most) {
  const float value = step(unit_half_open(word), scale, offset);
  const float above = value < least ? least : value;
  return above > most ? most : above;
}

/// floor(word * bound / 2^64) of the 64-bit word (high, low): uniform in [0, bound) up to a bias of bound / 2^64.
WM_HOST_DEVICE std::uint64_t integer_value(std::uint32_t low, std::uint32_t high, std::uint64_t bound) {
  const std::uint64_t word = (static_cast<std::uint64_t>(high) << 32) | low;
#if defined(__CUDA_ARCH__)
  return __umul64hi(word, bound);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(word) * bound) >> 64);
#endif
}

}  // namespace warpmeter::philox
