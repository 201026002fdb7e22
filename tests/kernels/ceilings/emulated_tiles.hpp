#pragma once

// What AMX's tile instructions do, in plain loops, in place of the intrinsics: included before a file that uses them,
// for testing the code around them on machines without AMX.
#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace warpmeter::emulated_tiles {

struct State {
  struct Config {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } config = {};
  std::uint8_t bytes[8][16][64] = {};
};
inline thread_local State state;

inline void load_config(const void* config) {
  std::memcpy(&state.config, config, sizeof(state.config));
  std::memset(state.bytes, 0, sizeof(state.bytes));
}
inline void load(int tile, const void* from, std::int64_t stride) {
  std::memset(state.bytes[tile], 0, sizeof(state.bytes[tile]));
  for (int row = 0; row < state.config.rows[tile]; ++row) {
    std::memcpy(state.bytes[tile][row], static_cast<const char*>(from) + row * stride, state.config.row_bytes[tile]);
  }
}
inline void store(int tile, void* to, std::int64_t stride) {
  for (int row = 0; row < state.config.rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, state.bytes[tile][row], state.config.row_bytes[tile]);
  }
}
inline float bf16_of(int tile, int row, int index) {
  std::uint16_t half = 0;
  std::memcpy(&half, state.bytes[tile][row] + 2 * index, sizeof(half));
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline void multiply(int c, int a, int b) {
  for (int m = 0; m < state.config.rows[c]; ++m) {
    for (int n = 0; n < state.config.row_bytes[c] / 4; ++n) {
      float sum = 0;
      std::memcpy(&sum, state.bytes[c][m] + 4 * n, sizeof(sum));
      for (int k = 0; k < state.config.row_bytes[a] / 4; ++k) {
        sum += bf16_of(a, m, 2 * k) * bf16_of(b, k, 2 * n) + bf16_of(a, m, 2 * k + 1) * bf16_of(b, k, 2 * n + 1);
      }
      std::memcpy(state.bytes[c][m] + 4 * n, &sum, sizeof(sum));
    }
  }
}

}  // namespace warpmeter::emulated_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) ::warpmeter::emulated_tiles::load_config(config)
#define _tile_release() ::warpmeter::emulated_tiles::state = {}
#define _tile_zero(tile) std::memset(::warpmeter::emulated_tiles::state.bytes[tile], 0, 16 * 64)
#define _tile_loadd(tile, from, stride) ::warpmeter::emulated_tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::warpmeter::emulated_tiles::store(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) ::warpmeter::emulated_tiles::multiply(c, a, b)
