#pragma once

namespace warpmeter::ptx {

/// Adds four floats to 16-byte aligned global memory, each atomically, without reading back. One instruction from
/// sm_90, four before.
__device__ __forceinline__ void reduce_add_v4(float* address, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
#else
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(a) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address + 1), "f"(b) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address + 2), "f"(c) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address + 3), "f"(d) : "memory");
#endif
}

/// Adds to one float of global memory, atomically, without reading back.
__device__ __forceinline__ void reduce_add(float* address, float a) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(a) : "memory");
}

/// reduce_add_v4 for two floats, 8-byte aligned.
__device__ __forceinline__ void reduce_add_v2(float* address, float a, float b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(a), "f"(b) : "memory");
#else
  reduce_add(address, a);
  reduce_add(address + 1, b);
#endif
}

}  // namespace warpmeter::ptx
