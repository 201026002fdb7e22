#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// Four registers of four neighbouring threads, transposed: afterwards thread t (its index in the four) holds register
/// t of threads 0 to 3.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int t) {
  // Two exchanges of halves, as in a 4 x 4 transposition by 2 x 2 blocks.
  const bool odd = t % 2 != 0, high = t >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? got : x[i];
    x[i + 1] = odd ? x[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 2);
    x[i] = high ? got : x[i];
    x[i + 2] = high ? x[i + 2] : got;
  }
}

}  // namespace warpmeter::ptx
