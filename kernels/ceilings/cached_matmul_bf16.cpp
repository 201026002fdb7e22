// The bf16 product of operands that stay in cache, fp32 sums: compiled for AVX512_BF16 and for AMX.
#include <immintrin.h>

#include "kernels/ceilings/detail/cached_matmul_kernel.hpp"

namespace warpmeter::ceilings::detail::WM_ISA {
namespace {

#if defined(WM_ISA_amx_bf16)

// A and B 16 KiB each, C 4 KiB of a 48 KiB cache. 2 x 2 tiles of C, so that each tile loaded is multiplied twice.
constexpr std::int64_t kTile = 16, kDepthStep = 32;
constexpr std::int64_t kRows = 2 * kTile, kColumns = 2 * kTile, kDepth = 256, kPasses = 8;
constexpr double kCallFlops = 1.6e10;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
// A constant in memory: GCC's intrinsic tells the compiler of its first bytes only, so a local's others could be lost.
constexpr TileConfig kTileConfig;

/// Tiles 0 to 3 are C, 4 and 5 A's, 6 and 7 B's.
[[gnu::always_inline]] inline void multiply_once(const std::uint16_t* a, const std::uint32_t* b, float* c) {
  constexpr std::int64_t kABytes = kDepth * 2, kBBytes = kColumns * 4, kCBytes = kColumns * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t pass = 0; pass < kPasses; ++pass) {
#pragma GCC unroll 1
    for (std::int64_t k = 0; k < kDepth; k += kDepthStep) {
      _tile_loadd(4, a + k, kABytes);
      _tile_loadd(6, b + k / 2 * kColumns, kBBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + k / 2 * kColumns + kTile, kBBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTile * kDepth + k, kABytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kCBytes);
  _tile_stored(1, c + kTile, kCBytes);
  _tile_stored(2, c + kTile * kColumns, kCBytes);
  _tile_stored(3, c + kTile * kColumns + kTile, kCBytes);
}

void multiply(const void* a, const void* b, float* c, std::int64_t times) {
  // GCC's tile loads do not say that they read memory: the operands must be there before the first one.
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&kTileConfig);
  for (std::int64_t i = 0; i < times; ++i) {
    multiply_once(static_cast<const std::uint16_t*>(a), static_cast<const std::uint32_t*>(b), c);
  }
  _tile_release();
}

#else

// A 6 KiB, B 16 KiB, C 6 KiB of a 32 KiB cache.
constexpr int kGroupRows = 6, kGroups = 4, kWidth = 16, kVectors = 4;
constexpr std::int64_t kRows = kGroupRows * kGroups, kColumns = kVectors * kWidth, kDepth = 128, kPasses = 4;
constexpr double kCallFlops = 2e9;

using Vec = float __attribute__((vector_size(64)));
using Words = std::uint32_t __attribute__((vector_size(64)));

[[gnu::always_inline]] inline __m512bh as_bf16(Words words) {
  __m512bh result;
  __builtin_memcpy(&result, &words, sizeof(result));
  return result;
}

[[gnu::noinline]] void multiply_once(const void* a_data, const void* b_data, float* c_data) {
  auto* const __restrict b = static_cast<const std::uint32_t*>(b_data);
  for (int group = 0; group < kGroups; ++group) {
    auto* const __restrict a = static_cast<const std::uint16_t*>(a_data) + group * kGroupRows * kDepth;
    auto* const __restrict c = c_data + group * kGroupRows * kColumns;
    Vec sums[kGroupRows][kVectors] = {};
    for (std::int64_t pass = 0; pass < kPasses; ++pass) {
      for (std::int64_t k = 0; k < kDepth; k += 2) {
        Words row[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&row[v], b + k / 2 * kColumns + v * kWidth, sizeof(Words));
#pragma GCC unroll 8
        for (int i = 0; i < kGroupRows; ++i) {
          std::uint32_t pair;
          __builtin_memcpy(&pair, a + i * kDepth + k, sizeof(pair));
          const Words x = pair + Words{};
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], as_bf16(x), as_bf16(row[v]));
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kGroupRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) __builtin_memcpy(c + i * kColumns + v * kWidth, &sums[i][v], sizeof(Vec));
    }
  }
}

void multiply(const void* a, const void* b, float* c, std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) multiply_once(a, b, c);
}

#endif

#define WM_TEXT_OF(word) #word
#define WM_TEXT(word) WM_TEXT_OF(word)

}  // namespace

extern const CachedMatmulKernel kCachedMatmul;
const CachedMatmulKernel kCachedMatmul = {WM_TEXT(WM_ISA), true,    kRows,      kColumns,
                                          kDepth,          kPasses, kCallFlops, multiply};

}  // namespace warpmeter::ceilings::detail::WM_ISA
