#pragma once

#include "kernels/attention/detail/flash_micro.hpp"

/// Products and packing on bf16 operands for the CPU flash attention, with AVX512_BF16 or AMX; included only by files
/// compiled for one of them (WM_ISA avx512_bf16 or amx_bf16, WM_ISA_avx512 set for both).
///
/// Both take the same operands: A row-major bf16 (rows, depth), B in pairs along the depth, (depth / 2, columns) of
/// 32-bit words whose low half is the even element, C fp32 row-major. Rows and columns of C are multiples of 16, the
/// depth is one of 32; whoever packs pads with zeros.
namespace warpmeter::attention::WM_ISA {

static_assert(kWidth == 16);

/// bf16 pairs as 32-bit words.
using Word = std::uint32_t;
using Words = UintVec;

inline constexpr Index kDepthStep = 32;
inline constexpr Index kTile = 16;

WM_INLINE Words load_words(const void* p) {
  Words v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
WM_INLINE void store_words(void* p, Words v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
/// The first `count` (0 to 32) bf16 values, the others 0.
WM_INLINE Words load_words_partial(const Bf16* p, Index count) {
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
  return bit_cast_vec<Words>(_mm512_maskz_loadu_epi16(mask, p));
}
/// The first `count` (0 to 16) bf16 values, one a word.
WM_INLINE Words load_halves(const Bf16* p, Index count) {
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  const __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
  return bit_cast_vec<Words>(_mm512_maskz_cvtepu16_epi32(kAllLanes, halves));
}

WM_INLINE void transpose_words(Words (&rows)[kWidth]) {
  Vec block[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) block[i] = bit_cast_vec<Vec>(rows[i]);
  transpose(block);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) rows[i] = bit_cast_vec<Words>(block[i]);
}

/// Two rows rounded to bf16: `a` in the low 16 halves, `b` in the high ones.
WM_INLINE Words narrow_two(Vec a, Vec b) {
#if defined(WM_FLASH_EMULATE_AMX)
  const ShortVec low = narrow_bf16(a), high = narrow_bf16(b);
  Words result;
  __builtin_memcpy(&result, &low, sizeof(low));
  __builtin_memcpy(reinterpret_cast<char*>(&result) + sizeof(low), &high, sizeof(high));
  return result;
#else
  return bit_cast_vec<Words>(_mm512_cvtne2ps_pbh(b, a));
#endif
}
/// Lane j of the result pairs element j of both rows.
WM_INLINE Words interleave(Words two) {
  using Halves = std::uint16_t __attribute__((vector_size(64)));
  Halves order{};
  for (int i = 0; i < 32; ++i) order[i] = static_cast<std::uint16_t>(i / 2 + (i % 2) * 16);
  return bit_cast_vec<Words>(
      _mm512_maskz_permutexvar_epi16(~__mmask32{0}, bit_cast_vec<__m512i>(order), bit_cast_vec<__m512i>(two)));
}

// --- packing -------------------------------------------------------------------------------------------------------

/// to[row][k] = from[row][k], zeros up to padded_rows and padded_depth.
inline void copy_rows(const Bf16* from, Index stride, Index rows, Index padded_rows, Index head_dim, Index padded_depth,
                      Bf16* to) {
  for (Index row = 0; row < padded_rows; ++row) {
    for (Index k = 0; k < padded_depth; k += kDepthStep) {
      const Index count = row < rows ? clamp_of(head_dim - k, 0, kDepthStep) : 0;
      const Words words = count == kDepthStep ? load_words(from + row * stride + k)
                          : count == 0        ? Words{}
                                              : load_words_partial(from + row * stride + k, count);
      store_words(to + row * padded_depth + k, words);
    }
  }
}

/// to[k / 2][row] = (from[row][k], from[row][k + 1]): B of a product over head_dim, rows its columns.
inline void pack_pairs_of_columns(const Bf16* from, Index stride, Index rows, Index padded_rows, Index head_dim,
                                  Index padded_depth, Word* to, Index ld) {
  for (Index row = 0; row < padded_rows; row += kWidth) {
    for (Index k = 0; k < padded_depth; k += kDepthStep) {
      const Index count = clamp_of(head_dim - k, 0, kDepthStep);
      Words block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        block[i] = Words{};
        if (row + i < rows) {
          const Bf16* const p = from + (row + i) * stride + k;
          block[i] = count == kDepthStep ? load_words(p) : load_words_partial(p, count);
        }
      }
      transpose_words(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store_words(to + (k / 2 + i) * ld + row, block[i]);
    }
  }
}

/// Word j: (from[row][column + j], from[row + 1][column + j]), zeros beyond `rows` and head_dim.
WM_INLINE Words pair_of_rows(const Bf16* from, Index stride, Index row, Index rows, Index column, Index head_dim) {
  const Index count = clamp_of(head_dim - column, 0, kWidth);
  const Bf16* const p = from + row * stride + column;
  const Words low = row < rows ? load_halves(p, count) : Words{};
  const Words high = row + 1 < rows ? load_halves(p + stride, count) : Words{};
  return low | (high << 16);
}

/// to[row / 2][column] = (from[row][column], from[row + 1][column]): B of a product over rows.
inline void pack_pairs_of_rows(const Bf16* from, Index stride, Index rows, Index padded_rows, Index head_dim,
                               Index padded_columns, Word* to) {
  for (Index row = 0; row < padded_rows; row += 2) {
    for (Index column = 0; column < padded_columns; column += kWidth) {
      store_words(to + row / 2 * padded_columns + column, pair_of_rows(from, stride, row, rows, column, head_dim));
    }
  }
}

/// to[column][row] = from[row][column]: A of a product over rows. padded_rows is a multiple of 32, and to's stride.
inline void pack_columns(const Bf16* from, Index stride, Index rows, Index padded_rows, Index head_dim,
                         Index padded_columns, Bf16* to) {
  for (Index row = 0; row < padded_rows; row += kDepthStep) {
    for (Index column = 0; column < padded_columns; column += kWidth) {
      Words block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = pair_of_rows(from, stride, row + 2 * i, rows, column, head_dim);
      transpose_words(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store_words(to + (column + i) * padded_rows + row, block[i]);
    }
  }
}

/// to[column][row] = factor * from[row][column] for whole vectors of rows: columns < head_dim of C^T to bf16 rows.
/// `from` is (padded head_dim, ld) fp32.
inline void write_transposed(const float* from, Index ld, Index rows, Index head_dim, const float* row_factor,
                             float factor, Bf16* to, Index stride) {
  for (Index row = 0; row < rows; row += kWidth) {
    const Index row_count = min_of(kWidth, rows - row);
    const Vec scale = row_factor == nullptr ? broadcast(factor) : load(row_factor + row) * factor;
    for (Index column = 0; column < head_dim; column += kWidth) {
      Vec block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = load(from + (column + i) * ld + row) * scale;
      transpose(block);
      const Index count = min_of(kWidth, head_dim - column);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        if (i < row_count) {
          Bf16* const out = to + (row + i) * stride + column;
          if (count == kWidth) {
            store(out, block[i]);
          } else {
            store_partial(out, block[i], count);
          }
        }
      }
    }
  }
}

// --- products ------------------------------------------------------------------------------------------------------

#if defined(WM_ISA_amx_bf16)

#if defined(WM_FLASH_EMULATE_AMX)
/// What the tile instructions do, in plain loops: for testing the code around them on machines without AMX.
struct EmulatedTiles {
  Word words[8][16][16];
};
inline thread_local EmulatedTiles emulated_tiles;
struct Tiles {
  Tiles() {}  // nothing to hold
};
template <int tile>
WM_INLINE void tile_load(const void* p, Index bytes) {
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(emulated_tiles.words[tile][i], static_cast<const char*>(p) + i * bytes, 64);
  }
}
template <int tile>
WM_INLINE void tile_store(void* p, Index bytes) {
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(static_cast<char*>(p) + i * bytes, emulated_tiles.words[tile][i], 64);
  }
}
template <int tile>
WM_INLINE void tile_zero() {
  __builtin_memset(emulated_tiles.words[tile], 0, sizeof(emulated_tiles.words[tile]));
}
template <int c, int a, int b>
WM_INLINE void tile_multiply() {
  const auto value = [](Word bits) { return __builtin_bit_cast(float, bits); };
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      const Word left = emulated_tiles.words[a][m][k];
      for (int n = 0; n < 16; ++n) {
        const Word right = emulated_tiles.words[b][k][n];
        float sum = value(emulated_tiles.words[c][m][n]);
        sum += value(left << 16) * value(right << 16);
        sum += value(left & 0xFFFF0000u) * value(right & 0xFFFF0000u);
        emulated_tiles.words[c][m][n] = __builtin_bit_cast(Word, sum);
      }
    }
  }
}
#else
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
// A constant in memory: GCC's intrinsic tells the compiler of its first bytes only, so a local's others could be lost.
inline constexpr TileConfig kTileConfig;

/// Tile registers of the calling thread, all 16 rows of 64 bytes, for the scope's life.
class Tiles {
 public:
  Tiles() { _tile_loadconfig(&kTileConfig); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};
// The intrinsics are macros that want literals.
template <int tile>
WM_INLINE void tile_load(const void* p, Index bytes) {
  if constexpr (tile == 0) _tile_loadd(0, p, bytes);
  if constexpr (tile == 1) _tile_loadd(1, p, bytes);
  if constexpr (tile == 2) _tile_loadd(2, p, bytes);
  if constexpr (tile == 3) _tile_loadd(3, p, bytes);
  if constexpr (tile == 4) _tile_loadd(4, p, bytes);
  if constexpr (tile == 5) _tile_loadd(5, p, bytes);
  if constexpr (tile == 6) _tile_loadd(6, p, bytes);
  if constexpr (tile == 7) _tile_loadd(7, p, bytes);
}
template <int tile>
WM_INLINE void tile_store(void* p, Index bytes) {
  if constexpr (tile == 0) _tile_stored(0, p, bytes);
  if constexpr (tile == 1) _tile_stored(1, p, bytes);
  if constexpr (tile == 2) _tile_stored(2, p, bytes);
  if constexpr (tile == 3) _tile_stored(3, p, bytes);
}
template <int tile>
WM_INLINE void tile_zero() {
  if constexpr (tile == 0) _tile_zero(0);
  if constexpr (tile == 1) _tile_zero(1);
  if constexpr (tile == 2) _tile_zero(2);
  if constexpr (tile == 3) _tile_zero(3);
}
template <int c, int a, int b>
WM_INLINE void tile_multiply() {
  if constexpr (c == 0 && a == 4 && b == 6) _tile_dpbf16ps(0, 4, 6);
  if constexpr (c == 1 && a == 4 && b == 7) _tile_dpbf16ps(1, 4, 7);
  if constexpr (c == 2 && a == 5 && b == 6) _tile_dpbf16ps(2, 5, 6);
  if constexpr (c == 3 && a == 5 && b == 7) _tile_dpbf16ps(3, 5, 7);
}
#endif

/// One block of C: tiles 0 to 3; A in tiles 4 and 5, B in 6 and 7.
template <int row_tiles, int column_tiles>
[[gnu::noinline]] void tile_block(const Bf16* a, Index lda, const Word* b, Index ldb, Index depth, float* c, Index ldc,
                                  bool add) {
  const Index a_bytes = lda * 2, b_bytes = ldb * 4, c_bytes = ldc * 4;
  constexpr bool kDown = row_tiles == 2, kRight = column_tiles == 2;
  // GCC's tile loads do not say that they read memory: what was packed must be there before the first one.
  __asm__ volatile("" ::: "memory");
  if (add) {
    tile_load<0>(c, c_bytes);
    if constexpr (kRight) tile_load<1>(c + kTile, c_bytes);
    if constexpr (kDown) tile_load<2>(c + kTile * ldc, c_bytes);
    if constexpr (kDown && kRight) tile_load<3>(c + kTile * ldc + kTile, c_bytes);
  } else {
    tile_zero<0>();
    if constexpr (kRight) tile_zero<1>();
    if constexpr (kDown) tile_zero<2>();
    if constexpr (kDown && kRight) tile_zero<3>();
  }
  for (Index k = 0; k < depth; k += kDepthStep) {
    tile_load<4>(a + k, a_bytes);
    tile_load<6>(b + k / 2 * ldb, b_bytes);
    tile_multiply<0, 4, 6>();
    if constexpr (kRight) {
      tile_load<7>(b + k / 2 * ldb + kTile, b_bytes);
      tile_multiply<1, 4, 7>();
    }
    if constexpr (kDown) {
      tile_load<5>(a + kTile * lda + k, a_bytes);
      tile_multiply<2, 5, 6>();
    }
    if constexpr (kDown && kRight) tile_multiply<3, 5, 7>();
  }
  tile_store<0>(c, c_bytes);
  if constexpr (kRight) tile_store<1>(c + kTile, c_bytes);
  if constexpr (kDown) tile_store<2>(c + kTile * ldc, c_bytes);
  if constexpr (kDown && kRight) tile_store<3>(c + kTile * ldc + kTile, c_bytes);
}

/// C = or += A B; see the top. The calling thread holds Tiles.
inline void multiply_bf16(const Bf16* a, Index lda, const Word* b, Index ldb, Index depth, float* c, Index ldc,
                          Index rows, Index columns, bool add) {
  for (Index column = 0; column < columns; column += 2 * kTile) {
    const bool right = column + kTile < columns;
    for (Index row = 0; row < rows; row += 2 * kTile) {
      const bool down = row + kTile < rows;
      const auto run =
          right ? (down ? tile_block<2, 2> : tile_block<1, 2>) : (down ? tile_block<2, 1> : tile_block<1, 1>);
      run(a + row * lda, lda, b + column, ldb, depth, c + row * ldc + column, ldc, add);
    }
  }
}

#else

struct Tiles {
  Tiles() {}  // nothing to hold
};

template <int MR, int NV>
[[gnu::noinline]] void product_bf16(const Bf16* __restrict a, Index lda, const Word* __restrict b, Index ldb,
                                    Index depth, float* __restrict c, Index ldc, bool add) {
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = add ? load(c + i * ldc + v * kWidth) : Vec{};
  }
  for (Index k = 0; k < depth; k += 2) {
    Words row[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) row[v] = load_words(b + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      Word pair;
      __builtin_memcpy(&pair, a + i * lda, sizeof(pair));
      const Words x = pair + Words{};
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        acc[i][v] = _mm512_dpbf16_ps(acc[i][v], bit_cast_vec<__m512bh>(x), bit_cast_vec<__m512bh>(row[v]));
      }
    }
    a += 2;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(c + i * ldc + v * kWidth, acc[i][v]);
  }
}

/// C = or += A B; see the top.
inline void multiply_bf16(const Bf16* a, Index lda, const Word* b, Index ldb, Index depth, float* c, Index ldc,
                          Index rows, Index columns, bool add) {
  const Panels panels(columns / kWidth);
  for (Index p = 0; p < panels.count; ++p) {
    const Index column = panels.begin(p) * kWidth;
    for_vectors(
        panels.size(p), [&]<int NV>() __attribute__((always_inline)) {
          constexpr int kRows = kRowsOf<NV>;
          const auto run = [&]<int MR>(Index row) __attribute__((always_inline)) {
            product_bf16<MR, NV>(a + row * lda, lda, b + column, ldb, depth, c + row * ldc + column, ldc, add);
          };
          // Rows are a multiple of 16: groups that fill the registers, then fours (16 = 6 + 6 + 4, 32 = 4 x 6 + 4 + 4).
          Index row = 0;
          while (rows - row >= kRows && (rows - row - kRows) % 2 == 0 && rows - row != 8) {
            run.template operator()<kRows>(row);
            row += kRows;
          }
          for (; row + 4 <= rows; row += 4) run.template operator()<4>(row);
          for (; row + 2 <= rows; row += 2) run.template operator()<2>(row);
        });
  }
}

#endif

}  // namespace warpmeter::attention::WM_ISA
