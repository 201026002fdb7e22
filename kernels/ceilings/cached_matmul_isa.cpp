// The fp32 product of operands that stay in cache, compiled once for each instruction set: kRows x kVectors vectors of
// C in registers; each step over the inner dimension loads a row of B and broadcasts an element of A for each row.
#include "kernels/ceilings/detail/cached_matmul_kernel.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace warpmeter::ceilings::detail::WM_ISA {
namespace {

#if defined(WM_ISA_avx512)
constexpr int kWidth = 16, kVectors = 4;
constexpr double kCallFlops = 1e9;
#elif defined(WM_ISA_avx2)
constexpr int kWidth = 8, kVectors = 2;
constexpr double kCallFlops = 1e9;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kVectors = 4;
constexpr double kCallFlops = 5e8;
#else
constexpr int kWidth = 4, kVectors = 2;
constexpr double kCallFlops = 2.5e8;
#endif
using Vec = float __attribute__((vector_size(kWidth * 4)));

// The widest: A 6 KiB, B 16 KiB, C 6 KiB of a 32 KiB cache.
constexpr int kRows = 6, kGroups = 4;
constexpr std::int64_t kColumns = kVectors * kWidth, kDepth = 64, kPasses = 4;

[[gnu::always_inline]] inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(WM_ISA_avx512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(WM_ISA_avx2)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

[[gnu::noinline]] void multiply_once(const void* a_data, const void* b_data, float* c_data) {
  auto* const __restrict b = static_cast<const float*>(b_data);
  for (int group = 0; group < kGroups; ++group) {
    auto* const __restrict a = static_cast<const float*>(a_data) + group * kRows * kDepth;
    auto* const __restrict c = c_data + group * kRows * kColumns;
    Vec sums[kRows][kVectors] = {};
    for (std::int64_t pass = 0; pass < kPasses; ++pass) {
      for (std::int64_t k = 0; k < kDepth; ++k) {
        Vec row[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&row[v], b + k * kColumns + v * kWidth, sizeof(Vec));
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const Vec x = a[i * kDepth + k] - Vec{};
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(x, row[v], sums[i][v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) __builtin_memcpy(c + i * kColumns + v * kWidth, &sums[i][v], sizeof(Vec));
    }
  }
}

void multiply(const void* a, const void* b, float* c, std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) multiply_once(a, b, c);
}

#define WM_TEXT_OF(word) #word
#define WM_TEXT(word) WM_TEXT_OF(word)

}  // namespace

const CachedMatmulKernel kCachedMatmul = {WM_TEXT(WM_ISA), false,   kRows* kGroups, kColumns,
                                          kDepth,          kPasses, kCallFlops,     multiply};

}  // namespace warpmeter::ceilings::detail::WM_ISA
