#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// Warpgroup matrix products (sm_90a): D += A B of 64 x N x 16 with 16-bit operands and fp32 accumulators, issued by
/// the four warps of a warpgroup together. PTX ISA, "wgmma".
///
/// D: thread t of the warpgroup, with w = t / 32, g = t % 32 / 4 and q = t % 4, holds in d[4j .. 4j+3] the elements
/// (16w+g, 8j+2q), (16w+g, 8j+2q+1), (16w+g+8, 8j+2q), (16w+g+8, 8j+2q+1).
/// A in registers: a[0] = (16w+g, 2q..2q+1), a[1] = (16w+g+8, 2q..), a[2] = (16w+g, 2q+8..), a[3] = (16w+g+8, 2q+8..):
/// 16 columns of D, rounded and packed in pairs, are an A operand as they lie.
namespace warpmeter::ptx {

/// Orders register and shared-memory accesses of this warpgroup before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of products issued since the last commit.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses to `registers` over this point: accumulators change between issue and wait
/// without its knowing.
template <int kCount>
__device__ __forceinline__ void hold_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold_registers(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Shared-memory descriptor of an operand in rows of 128 bytes with the 128-byte swizzle, 1024-byte aligned groups of
/// eight rows one after another. `panel_bytes`: from one 64-element panel to the next along the contiguous dimension,
/// which matters where that dimension is M or N; where it is K, a further panel is a further descriptor. Advancing an
/// operand by b bytes is adding b / 16.
__device__ __forceinline__ std::uint64_t swizzled_descriptor(std::uint32_t address, std::uint32_t panel_bytes) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kGroupStride = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupStride | (static_cast<std::uint64_t>(panel_bytes / 16) << 16) | ((address & 0x3ffff) / 16);
}

/// Wgmma<T, N>, T = __nv_bfloat16 or __half. `kTransposeB` false: B lies as N rows of K; true: as K rows of N.
/// `accumulate` 0: D = A B.
template <class T, int kN>
struct Wgmma;

// One line a width follows: the accumulators' placeholders, those behind them, and the operands.

#define WM_WGMMA_TYPE(T, TYPE, N, D, I0, I1, I2, I3, I4, I5, I6, ...)                                                \
  template <>                                                                                                        \
  struct Wgmma<T, N> {                                                                                               \
    template <bool kTransposeB = false>                                                                              \
    static __device__ __forceinline__ void shared_shared(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,        \
                                                         int accumulate) {                                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                                            \
                   ", 0;\n"                                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, " I0 ", " I1           \
                   ", p, 1, 1, 0, " I3 ";\n}\n"                                                                      \
                   : __VA_ARGS__                                                                                     \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB ? 1 : 0));                                     \
    }                                                                                                                \
    template <bool kTransposeB>                                                                                      \
    static __device__ __forceinline__ void registers_shared(float (&d)[N / 2], const std::uint32_t* a,               \
                                                            std::uint64_t b, int accumulate) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I5                                                            \
                   ", 0;\n"                                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, {" I0 ", " I1 ", " I2  \
                   ", " I3 "}, " I4 ", p, 1, 1, " I6 ";\n}\n"                                                        \
                   : __VA_ARGS__                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB ? 1 : 0)); \
    }                                                                                                                \
  };
#define WM_WGMMA(...)                               \
  WM_WGMMA_TYPE(__nv_bfloat16, "bf16", __VA_ARGS__) \
  WM_WGMMA_TYPE(__half, "f16", __VA_ARGS__)
#define WM_ACC8(i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])

// clang-format off
WM_WGMMA(64,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
    "%32", "%33", "%34", "%35", "%36", "%37", "%38",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24))
WM_WGMMA(80,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39",
    "%40", "%41", "%42", "%43", "%44", "%45", "%46",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32))
WM_WGMMA(96,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47",
    "%48", "%49", "%50", "%51", "%52", "%53", "%54",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40))
WM_WGMMA(128,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
    "%60, %61, %62, %63",
    "%64", "%65", "%66", "%67", "%68", "%69", "%70",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40), WM_ACC8(48), WM_ACC8(56))
WM_WGMMA(160,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
    "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79",
    "%80", "%81", "%82", "%83", "%84", "%85", "%86",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40), WM_ACC8(48), WM_ACC8(56),
    WM_ACC8(64), WM_ACC8(72))
WM_WGMMA(176,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
    "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87",
    "%88", "%89", "%90", "%91", "%92", "%93", "%94",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40), WM_ACC8(48), WM_ACC8(56),
    WM_ACC8(64), WM_ACC8(72), WM_ACC8(80))
WM_WGMMA(192,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
    "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95",
    "%96", "%97", "%98", "%99", "%100", "%101", "%102",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40), WM_ACC8(48), WM_ACC8(56),
    WM_ACC8(64), WM_ACC8(72), WM_ACC8(80), WM_ACC8(88))
WM_WGMMA(256,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
    "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "
    "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
    "%120, %121, %122, %123, %124, %125, %126, %127",
    "%128", "%129", "%130", "%131", "%132", "%133", "%134",
    WM_ACC8(0), WM_ACC8(8), WM_ACC8(16), WM_ACC8(24), WM_ACC8(32), WM_ACC8(40), WM_ACC8(48), WM_ACC8(56),
    WM_ACC8(64), WM_ACC8(72), WM_ACC8(80), WM_ACC8(88), WM_ACC8(96), WM_ACC8(104), WM_ACC8(112), WM_ACC8(120))
// clang-format on

#undef WM_ACC8
#undef WM_WGMMA
#undef WM_WGMMA_TYPE

}  // namespace warpmeter::ptx
