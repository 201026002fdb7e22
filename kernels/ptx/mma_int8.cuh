#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// d = A B + c for one 16 x 8 x 32 tile: A unsigned and B signed bytes, sums of 32 bits that wrap around. With g = lane
/// / 4, t = lane % 4, four bytes of a register along the inner dimension, the lowest first: A: a[0] = (g, 4t), a[1] =
/// (g+8, 4t), a[2] = (g, 4t+16), a[3] = (g+8, 4t+16); B: b0 = (4t, g), b1 = (4t+16, g); D: d[0], d[1] = (g, 2t), (g,
/// 2t+1), d[2], d[3] = (g+8, 2t), (g+8, 2t+1). PTX ISA, "mma.m16n8k32".
__device__ __forceinline__ void mma_m16n8k32_u8s8(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                  std::uint32_t b1, const int (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

}  // namespace warpmeter::ptx
