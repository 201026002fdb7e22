#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/detail/simd.hpp"
#include "kernels/primer/kernel.hpp"
#include "kernels/runtime/parallel.hpp"

/// What the CPU parts of the kernels share, compiled once for each instruction set: vectors of kWidth floats (Vec,
/// load, store, fma, exp2, ... of kernels/attention/detail/simd.hpp), rows written past the cache, work dealt to
/// threads.
namespace warpmeter::primer::cpu_tools {

/// Whether writing `bytes` would throw everything else out of the last-level cache: then stores go past it.
[[nodiscard]] bool exceeds_cache(std::size_t bytes);

namespace WM_ISA {

using namespace attention::WM_ISA;

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

/// 2^x for x <= 0, within 3e-7 of it; 0 under -126, NaN for NaN. Half of what exp2 costs, which takes any x.
WM_INLINE Vec exp2_not_positive(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Vec bounded = max(broadcast(-126.0f), x);
  const Vec shifted = bounded + kRound;
  const Vec r = bounded - (shifted - kRound);  // |r| <= 1/2: ln(2)^n / n! as coefficients
  Vec p = fma(broadcast(1.54035304e-4f), r, broadcast(1.33335581e-3f));
  p = fma(p, r, broadcast(9.61812911e-3f));
  p = fma(p, r, broadcast(5.55041087e-2f));
  p = fma(p, r, broadcast(2.40226507e-1f));
  p = fma(p, r, broadcast(6.93147181e-1f));
  p = fma(p, r, broadcast(1.0f));
  const Vec scaled = bit_cast_vec<Vec>(bit_cast_vec<UintVec>(p) + (bit_cast_vec<UintVec>(shifted) << 23));
  return x < broadcast(-126.0f) ? Vec{} : scaled;
}

/// Elements that go past the cache at a time: a vector's bytes, which are two vectors of 16 bits.
template <class T>
inline constexpr int kStreamed = 4 / static_cast<int>(sizeof(T)) * kWidth;

/// Stores a vector of fp32 or two of 16 bits past the cache; p is aligned to kStreamed elements.
template <class T>
WM_INLINE void store_past_cache(T* p, const Vec (&v)[kStreamed<T> / kWidth]) {
  T elements[kStreamed<T>];
  for (int i = 0; i < kStreamed<T> / kWidth; ++i) store(elements + i * kWidth, v[i]);
#if defined(WM_ISA_avx512)
  __m512i bits;
  __builtin_memcpy(&bits, elements, sizeof(bits));
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bits);
#elif defined(WM_ISA_avx2)
  __m256i bits;
  __builtin_memcpy(&bits, elements, sizeof(bits));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
#elif defined(__x86_64__)
  __m128i bits;
  __builtin_memcpy(&bits, elements, sizeof(bits));
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), bits);
#else
  __builtin_memcpy(p, elements, sizeof(elements));
#endif
}

/// Writes y[0, n): f(i, count) gives the elements from i on, of which `count` are stored.
template <class T, class F>
WM_INLINE void write_row(T* y, std::int64_t n, bool past_cache, F&& f) {
  std::int64_t i = 0;
  if (past_cache) {
    constexpr std::uintptr_t kBytes = kStreamed<T> * sizeof(T);
    const auto off = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(y) % kBytes / sizeof(T));
    while (i < off && i < n) {
      std::int64_t count = off < n ? off - i : n - i;
      if (count > kWidth) count = kWidth;
      store_partial(y + i, f(i, count), count);
      i += count;
    }
    for (; i + kStreamed<T> <= n; i += kStreamed<T>) {
      Vec v[kStreamed<T> / kWidth];
      for (int part = 0; part < kStreamed<T> / kWidth; ++part) {
        v[part] = f(i + part * kWidth, std::int64_t{kWidth});
      }
      store_past_cache(y + i, v);
    }
  }
  for (; i + kWidth <= n; i += kWidth) store(y + i, f(i, std::int64_t{kWidth}));
  if (i < n) store_partial(y + i, f(i, n - i), n - i);
}

/// What was written past the cache is ordered before what follows.
WM_INLINE void finish_writes() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// Less than this, in bytes touched or in FLOPs, is done before other threads have woken up.
inline constexpr double kSerialWork = 1 << 16;

/// Calls body(begin, end) on every thread with its even, contiguous part of [0, count), cut at multiples of `grain`;
/// once, on the calling thread, when there is little `work`.
template <class Body>
void for_parts(std::int64_t count, std::int64_t grain, double work, Body&& body) {
  if (work < kSerialWork) {
    body(std::int64_t{0}, count);
    finish_writes();
    return;
  }
  parallel_workers([&](int worker, int workers) {
    const std::int64_t grains = (count + grain - 1) / grain;
    const std::int64_t begin = grains * worker / workers * grain;
    const std::int64_t end = grains * (worker + 1) / workers * grain;
    if (begin < count) body(begin, end < count ? end : count);
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

}  // namespace WM_ISA
}  // namespace warpmeter::primer::cpu_tools

namespace warpmeter::primer {
using namespace cpu_tools::WM_ISA;
}
