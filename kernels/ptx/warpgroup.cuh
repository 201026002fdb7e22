#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// Registers a thread of this warpgroup, all of whose warps run it (sm_90a); a multiple of 8. Takes effect only in
/// kernels with a register bound at entry (__launch_bounds__ with a minimum of blocks).
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_less() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Whether this is the one elected thread of its converged warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace warpmeter::ptx
