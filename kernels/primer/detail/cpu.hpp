#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/primer/kernel.hpp"
#include "kernels/runtime/isa_rows.hpp"
#include "kernels/runtime/parallel.hpp"

/// What the CPU parts of the kernels share, compiled once for each instruction set: vectors of kWidth floats (Vec,
/// load, store, fma, exp2, ... of kernels/runtime/isa_rows.hpp), rows written past the cache, work dealt to
/// threads.
namespace warpmeter::primer::cpu_tools {

/// Whether writing `bytes` would throw everything else out of the last-level cache: then stores go past it.
[[nodiscard]] bool exceeds_cache(std::size_t bytes);

namespace WM_ISA {

using namespace vec::WM_ISA;

/// Calls f with a value of the type that `dtype` is stored as.
template <class F>
WM_INLINE void by_dtype(DType dtype, F&& f) {
  if (dtype == DType::bf16) {
    f(Bf16{});
  } else if (dtype == DType::fp16) {
    f(Fp16{});
  } else {
    f(0.0f);
  }
}

/// kWidth elements, or the first `count` and zeros behind them.
template <class T>
WM_INLINE Vec load_some(const T* p, std::int64_t count) {
  return count >= kWidth ? load(p) : load_partial(p, count);
}

/// Asks for a line that will be read, into the second-level cache: a request for the first level would hold one of its
/// few miss buffers until memory answers. Any address will do.
WM_INLINE void ask_for(const void* p) {
  __builtin_prefetch(p, 0, 2);
}

/// Asks for what lies a quarter of a page behind two vectors from p on.
template <class T>
WM_INLINE void ask_ahead(const T* p) {
  constexpr std::int64_t kAheadBytes = 1024, kLineBytes = 64;
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(2 * kWidth * sizeof(T)); at += kLineBytes)
    ask_for(reinterpret_cast<const char*>(p) + kAheadBytes + at);
}

/// Elements 0, 2, 4, ... and 1, 3, 5, ... of bf16: a shift and a mask away, while in order they would have to change
/// lanes.
WM_INLINE void widen_pairs(const Bf16* p, Vec (&v)[2]) {
  UintVec pairs;
  __builtin_memcpy(&pairs, p, sizeof(pairs));
  v[0] = bit_cast_vec<Vec>(pairs << 16);
  v[1] = bit_cast_vec<Vec>(pairs & 0xFFFF0000u);
}

/// Two vectors from p on for a sum, whose order is free: of bf16 in pairs.
template <class T>
WM_INLINE void load_two(const T* p, Vec (&v)[2]) {
  if constexpr (std::is_same_v<T, Bf16>) {
    widen_pairs(p, v);
  } else {
    v[0] = load(p);
    v[1] = load(p + kWidth);
  }
}

/// Elements that go past the cache at a time: a vector's bytes, which are two vectors of 16 bits.
template <class T>
inline constexpr int kStreamed = 4 / static_cast<int>(sizeof(T)) * kWidth;

/// round_bf16 of a kernel's result, but for what that does about NaN: operands are bf16, so that no NaN has bits below
/// a bf16's that could carry upwards.
WM_INLINE UintVec round_result(Vec v) {
  const UintVec bits = bit_cast_vec<UintVec>(v);
#if defined(WM_ISA_avx512)  // in three instructions, as in round_bf16
  const __m512i odd = bit_cast_vec<__m512i>(bits >> 16), one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(0x7FFE);
  return bits - bit_cast_vec<UintVec>(_mm512_maskz_ternarylogic_epi32(kAllLanes, odd, one, most, 0x15));
#else
  return bits + 0x7FFFu + ((bits >> 16) & 1u);
#endif
}

/// The upper halves of every second number's lane and of those between, in their order.
WM_INLINE UintVec join_upper(UintVec even, UintVec odd) {
#if defined(WM_ISA_avx2)  // one instruction less than a mask and an or
  return bit_cast_vec<UintVec>(_mm256_blend_epi16(bit_cast_vec<__m256i>(even >> 16), bit_cast_vec<__m256i>(odd), 0xAA));
#else
  return (odd & 0xFFFF0000u) | (even >> 16);
#endif
}

/// Every second number, and those between, as bf16. What lies halfway between two of them, to one in 2^16 numbers that
/// are themselves off by more, goes away from zero: to even would be four instructions more.
WM_INLINE UintVec join_pairs(Vec even, Vec odd) {
  return join_upper(bit_cast_vec<UintVec>(even) + 0x8000u, bit_cast_vec<UintVec>(odd) + 0x8000u);
}

/// Which elements a kernel computes in a vector: `count` from i on, further lanes 0.
struct Run {
  std::int64_t i, count;
  template <class T>
  [[nodiscard]] WM_INLINE Vec load(const T* p) const {
    return load_some(p + i, count);
  }
};

/// Or every second one, the first at i + kOdd, of bf16.
template <int kOdd>
struct EverySecond {
  std::int64_t i;
  [[nodiscard]] WM_INLINE Vec load(const Bf16* p) const {
    Vec v[2];
    widen_pairs(p + i, v);
    return v[kOdd];
  }
};

/// The bits of a vector of fp32 or of two of 16 bits. They are put together in registers: two halves stored and the
/// whole loaded again would wait for the stores.
WM_INLINE UintVec streamed_bits(const Vec (&v)[1], float) {
  return bit_cast_vec<UintVec>(v[0]);
}
WM_INLINE UintVec streamed_bits(const Vec (&v)[2], Bf16) {
#if defined(WM_ISA_avx512)
  UintVec upper;  // 1, 3, 5, ...: the upper halves of the 32-bit lanes of both
  for (unsigned i = 0; i < kWidth; ++i) upper[i] = (4 * i + 3) << 16 | (4 * i + 1);
  return bit_cast_vec<UintVec>(_mm512_permutex2var_epi16(bit_cast_vec<__m512i>(round_result(v[0])),
                                                         bit_cast_vec<__m512i>(upper),
                                                         bit_cast_vec<__m512i>(round_result(v[1]))));
#else
  return narrow_bf16(v[0], v[1]);
#endif
}
WM_INLINE UintVec streamed_bits(const Vec (&v)[2], Fp16) {
  return narrow_fp16(v[0], v[1]);
}

/// Stores a vector's bits; p is aligned to them where they go past the cache.
template <class T>
WM_INLINE void store_bits(T* p, UintVec bits, bool past_cache) {
  if (!past_cache) {
    __builtin_memcpy(p, &bits, sizeof(bits));
    return;
  }
#if defined(WM_ISA_avx512)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bit_cast_vec<__m512i>(bits));
#elif defined(WM_ISA_avx2)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bit_cast_vec<__m256i>(bits));
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), bit_cast_vec<__m128i>(bits));
#else
  __builtin_memcpy(p, &bits, sizeof(bits));
#endif
}

/// Stores a vector of fp32 or two of 16 bits; p is aligned to kStreamed elements where they go past the cache.
template <class T>
WM_INLINE void store_streamed(T* p, const Vec (&v)[kStreamed<T> / kWidth], bool past_cache) {
#if defined(WM_ISA_avx512) || defined(WM_ISA_avx2)
  if constexpr (std::is_same_v<T, Fp16>) {  // each half of a line by itself: joined they take a third longer
    for (int part = 0; part < 2; ++part) {
      const ShortVec half = narrow_fp16(v[part]);
      if (!past_cache) {
        __builtin_memcpy(p + part * kWidth, &half, sizeof(half));
      } else {
#if defined(WM_ISA_avx512)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(p + part * kWidth), bit_cast_vec<__m256i>(half));
#else
        _mm_stream_si128(reinterpret_cast<__m128i*>(p + part * kWidth), bit_cast_vec<__m128i>(half));
#endif
      }
    }
    return;
  }
#endif
  store_bits(p, streamed_bits(v, T{}), past_cache);
}

/// Elements before the first that may go past the cache.
template <class T>
WM_INLINE std::int64_t unaligned(const T* y) {
  return static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(y) % (kStreamed<T> * sizeof(T)) / sizeof(T));
}

/// Bytes of a row that are put together before they go past the cache, where several rows are written at once: a core
/// that goes from row to row with every vector leaves lines half written (four rows by 32 bytes: 16 GB/s where by 512
/// it is 31, on a core of 32-byte stores). 0: a vector is a line.
#if defined(WM_ISA_avx512)
constexpr std::int64_t kTogether = 0;
#else
constexpr std::int64_t kTogether = 512;
#endif

/// Whether F of write_rows is asked for every second element of T.
template <int kRows, class T, class F>
consteval bool by_pairs() {
#if !defined(WM_ISA_avx512)  // there the order takes one instruction, and back one
  if constexpr (std::is_same_v<T, Bf16>) return std::is_invocable_v<F, EverySecond<1>, Vec(&)[kRows]>;
#endif
  return false;
}

/// Copies kTogether bytes past the cache.
WM_INLINE void stream_together(void* to, const void* from) {
  for (std::int64_t at = 0; at < kTogether; at += static_cast<std::int64_t>(sizeof(UintVec))) {
    UintVec bits;
    __builtin_memcpy(&bits, static_cast<const char*>(from) + at, sizeof(bits));
    store_bits(static_cast<char*>(to) + at, bits, true);
  }
}

/// Writes [0, n) of `rows` rows, at most kRows, `stride` elements apart: f(run, v) puts the run's elements of row r
/// into v[r]. Of bf16, where f takes EverySecond as well, or has f.pairs(i, even, odd) and f.has_pairs(i) says so, two
/// vectors of every second element are asked for: they need not change lanes. The rows go past the cache where all
/// begin alike.
template <int kRows, class T, class F>
WM_INLINE void write_rows(T* y, std::int64_t rows, std::int64_t stride, std::int64_t n, bool past_cache, F&& f) {
  std::int64_t i = 0;
  const auto some = [&](std::int64_t end) WM_INLINE_LAMBDA {
    while (i < end) {
      const std::int64_t count = end - i < kWidth ? end - i : kWidth;
      Vec v[kRows] = {};
      f(Run{i, count}, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        if (r < rows) store_partial(y + r * stride + i, v[r], count);
      }
      i += count;
    }
  };
  // Calls g(r) for each row.
  const auto each_row = [&](auto&& g) WM_INLINE_LAMBDA {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      g(r);
    }
  };
  // Whole vectors up to `end`, to rows that are `apart` elements from one another, from to + i - origin on.
  const auto whole = [&](std::int64_t end, T* to, std::int64_t apart, std::int64_t origin, bool past) WM_INLINE_LAMBDA {
    for (; i + kStreamed<T> <= end; i += kStreamed<T>) {
      T* const at = to + (i - origin);
      constexpr int kParts = kStreamed<T> / kWidth;
      Vec of_part[kParts][kRows] = {};
      if constexpr (std::is_same_v<T, Bf16> && requires { f.has_pairs(i); }) {
        if (f.has_pairs(i)) {
          f.pairs(i, of_part[0], of_part[1]);
          each_row([&](int r) WM_INLINE_LAMBDA {
            store_bits(at + r * apart, join_pairs(of_part[0][r], of_part[1][r]), past);
          });
          continue;
        }
      }
      if constexpr (by_pairs<kRows, T, F>()) {
        f(EverySecond<0>{i}, of_part[0]);
        f(EverySecond<1>{i}, of_part[1]);
        each_row([&](int r) WM_INLINE_LAMBDA {
          store_bits(at + r * apart, join_upper(round_result(of_part[0][r]), round_result(of_part[1][r])), past);
        });
      } else {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) f(Run{i + part * kWidth, kWidth}, of_part[part]);
        each_row([&](int r) WM_INLINE_LAMBDA {
          Vec v[kParts];
#pragma GCC unroll 2
          for (int part = 0; part < kParts; ++part) v[part] = of_part[part][r];
          store_streamed(at + r * apart, v, past);
        });
      }
    }
  };
  past_cache = past_cache && (rows == 1 || stride % kStreamed<T> == 0);
  if (past_cache) some(unaligned(y) < n ? unaligned(y) : n);
  if constexpr (kRows > 1 && kTogether > 0) {
    constexpr std::int64_t kPiece = kTogether / static_cast<std::int64_t>(sizeof(T));
    while (past_cache && n - i >= kPiece) {
      alignas(64) T together[kRows * kPiece];
      const std::int64_t first = i;
      whole(first + kPiece, together, kPiece, first, false);
      for (int r = 0; r < kRows && r < rows; ++r) stream_together(y + r * stride + first, together + r * kPiece);
    }
  }
  whole(n, y, stride, 0, past_cache);
  some(n);
}

/// Writes y[0, n): f(run) gives the run's elements; of bf16 f(every_second) as well, where f takes that.
template <class T, class F>
WM_INLINE void write_row(T* y, std::int64_t n, bool past_cache, F&& f) {
  const auto of_row = [&](auto elements, Vec(&v)[1])
                          WM_INLINE_LAMBDA -> decltype(f(elements), void()) { v[0] = f(elements); };
  write_rows<1>(y, 1, 0, n, past_cache, of_row);
}

/// What was written past the cache is ordered before what follows.
WM_INLINE void finish_writes() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// Less than this, in bytes touched or in FLOPs, is done before other threads have woken up.
inline constexpr double kSerialWork = 1 << 16;

/// Calls body(begin, end), or body(begin, end, worker) where it takes that, on every thread with its even, contiguous
/// part of [0, count), cut at multiples of `grain`; once, on the calling thread, when there is little `work`.
template <class Body>
void for_parts(std::int64_t count, std::int64_t grain, double work, Body&& body) {
  const auto call = [&](std::int64_t begin, std::int64_t end, [[maybe_unused]] int worker) {
    if constexpr (requires { body(begin, end, worker); }) {
      body(begin, end, worker);
    } else {
      body(begin, end);
    }
  };
  if (work < kSerialWork) {
    call(0, count, 0);
    finish_writes();
    return;
  }
  parallel_workers([&](int worker, int workers) {
    const std::int64_t grains = (count + grain - 1) / grain;
    const std::int64_t begin = grains * worker / workers * grain;
    const std::int64_t end = grains * (worker + 1) / workers * grain;
    if (begin < count) call(begin, end < count ? end : count, worker);
    finish_writes();
  });
}

/// The sum of f(i, count) over [0, n) in pieces of kWidth: `count` elements from i on, further lanes 0. Four sums at a
/// time, so that adding never waits for adding; the order is the same on every call.
template <class F>
WM_INLINE float sum_row(std::int64_t n, F&& f) {
  Vec sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    for (int u = 0; u < 4; ++u) sums[u] = sums[u] + f(i + u * kWidth, std::int64_t{kWidth});
  }
  for (; i < n; i += kWidth) sums[0] = sums[0] + f(i, n - i < kWidth ? n - i : std::int64_t{kWidth});
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// Of a row's numbers the largest, and one that none is below.
struct Range {
  float most, least;
};

/// The range of x[0, n), 16 bits, compared as integers, whose order is theirs but for two negative ones, which is the
/// other way round. Both are NaN where there is a NaN that is not negative, `least` where there is one that is.
template <class T>
WM_INLINE Range range_of_row_16bit(const T* x, std::int64_t n) {
  using Signed = std::int16_t __attribute__((vector_size(kWidth * 4)));
  using Unsigned = std::uint16_t __attribute__((vector_size(kWidth * 4)));
  constexpr std::int64_t kHalves = 2 * kWidth;
  Signed most[2] = {Signed{} - 0x7FFF - 1, Signed{} - 0x7FFF - 1};
  Unsigned lowest[2] = {};  // the negative ones are the largest, -infinity and NaN before all
  std::int64_t i = 0;
  const auto take = [&](int u) WM_INLINE_LAMBDA {
    Signed bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    const Unsigned without_sign = bit_cast_vec<Unsigned>(bits);
    most[u] = bits > most[u] ? bits : most[u];
    lowest[u] = without_sign > lowest[u] ? without_sign : lowest[u];
    i += kHalves;
  };
  while (i + 2 * kHalves <= n) {
    take(0);
    take(1);
  }
  if (i + kHalves <= n) take(0);
  most[0] = most[1] > most[0] ? most[1] : most[0];
  lowest[0] = lowest[1] > lowest[0] ? lowest[1] : lowest[0];
  int top = -0x8000, bottom = 0;
  for (int lane = 0; lane < kHalves; ++lane) {
    top = most[0][lane] > top ? most[0][lane] : top;
    bottom = lowest[0][lane] > bottom ? lowest[0][lane] : bottom;
  }
  for (; i < n; ++i) {
    const int bits = static_cast<std::int16_t>(x[i].bits);
    top = bits > top ? bits : top;
    bottom = x[i].bits > bottom ? x[i].bits : bottom;
  }
  if (top < 0) {  // all are negative
    top = 0xFFFF;
    for (i = 0; i < n; ++i) top = x[i].bits < top ? x[i].bits : top;
  }
  const auto value = [](int bits) WM_INLINE_LAMBDA { return to_float(T{static_cast<std::uint16_t>(bits)}); };
  const float largest = value(top);
  return {largest, largest == largest ? value(bottom < 0x8000 ? 0 : bottom) : largest};
}

/// The range of x[0, n); of fp32 the largest alone.
template <class T>
WM_INLINE Range range_of_row(const T* x, std::int64_t n) {
  if constexpr (sizeof(T) == 2) return range_of_row_16bit(x, n);
  Vec most[4];
  for (Vec& m : most) m = broadcast(to_float(x[0]));
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    for (int u = 0; u < 4; ++u) most[u] = max(most[u], load(x + i + u * kWidth));
  }
  for (; i + kWidth <= n; i += kWidth) most[0] = max(most[0], load(x + i));
  float largest = reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
  for (; i < n; ++i) largest = to_float(x[i]) > largest ? to_float(x[i]) : largest;
  return {largest, -__builtin_inff()};
}

}  // namespace WM_ISA
}  // namespace warpmeter::primer::cpu_tools

namespace warpmeter::primer {
using namespace cpu_tools::WM_ISA;
}
