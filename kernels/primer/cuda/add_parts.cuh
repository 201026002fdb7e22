#pragma once

#include "kernels/primer/cuda/cluster.cuh"
#include "kernels/primer/cuda/toolbox.cuh"

/// The second stage of sums down the columns: the first leaves a partial sum for each part of the rows, and this adds
/// the parts up, in the same order on every run.
namespace warpmeter::primer::cuda_tools {

constexpr int kAddWarps = 32;  ///< of a block: each adds every 32nd part

/// In the kernel of the first stage: once all its blocks have got here, those of the second may be put on
/// multiprocessors that have room, where they wait for the first stage's end. It saves the time of a launch.
__device__ __forceinline__ void let_second_stage_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// result[col] = sum over part of partial[part * cols + col]. A block has 32 columns: warp k adds up every kAddWarps-th
/// part from the k-th on, then the first warp adds up the warps' sums.
template <class T>
__global__ void __launch_bounds__(32 * kAddWarps)
    add_parts_kernel(const float* partial, T* result, int parts, std::int64_t cols) {
  __shared__ float sums[kAddWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t col = blockIdx.x * std::int64_t{32} + lane;
  float sum = 0.0f;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // until the first stage has ended and its sums are to be seen
#endif
  if (col < cols) {
#pragma unroll 4
    for (int part = warp; part < parts; part += kAddWarps) sum += partial[part * cols + col];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  for (int k = 1; k < kAddWarps; ++k) sum += sums[k][lane];
  result[col] = from_float<T>(sum);
}

template <class T>
void add_parts(const float* partial, T* result, int parts, std::int64_t cols, StreamView stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid_x(ceil_div(cols, 32)));
  config.blockDim = dim3(32 * kAddWarps);
  config.stream = handle(stream);
  config.attrs = &early;
  config.numAttrs = has_clusters(stream) ? 1 : 0;  // both came with compute capability 9.0
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, add_parts_kernel<T>, partial, result, parts, cols));
}

}  // namespace warpmeter::primer::cuda_tools
