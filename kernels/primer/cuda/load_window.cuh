#pragma once

#include "kernels/primer/cuda/toolbox.cuh"

namespace warpmeter::primer::cuda_tools {

/// A block of kThreads brings a window of a matrix into shared memory as floats: kRows rows of kPitch elements from x
/// on, where `rows` rows and `cols` columns are left of a matrix of `row_stride` elements a row; beyond them are zeros.
/// All loads are under way before the first is stored. Waits before it writes, for the last window's readers, and
/// after.
template <int kThreads, int kRows, int kPitch, class T>
__device__ __forceinline__ void load_window(const T* x, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                                            float* window) {
  constexpr int kAcross = kPitch / kPack<T>, kItems = kRows * kAcross;
  static_assert(kPitch % kPack<T> == 0);
  constexpr int kLoads = (kItems + kThreads - 1) / kThreads;
  uint4 raw[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const int item = threadIdx.x + load * kThreads;
    const std::int64_t row = item / kAcross, col = item % kAcross * kPack<T>;
    raw[load] = load_pack<T, Reuse::again>(x + row * row_stride + col, row < rows && item < kItems ? cols - col : 0);
  }
  __syncthreads();
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const int item = threadIdx.x + load * kThreads;
    if (item >= kItems) break;
    float values[kPack<T>];
    unpack<T>(raw[load], values);
#pragma unroll
    for (int i = 0; i < kPack<T>; i += 4) {
      *reinterpret_cast<float4*>(window + item * kPack<T> + i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }
  __syncthreads();
}

}  // namespace warpmeter::primer::cuda_tools
