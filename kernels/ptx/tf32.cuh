#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// The nearest tf32 (ten bits behind the point, ties away from zero) as an fp32 whose low 13 bits are zero.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

}  // namespace warpmeter::ptx
