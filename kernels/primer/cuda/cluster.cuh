#pragma once

#include <cooperative_groups.h>

#include "kernels/primer/cuda/toolbox.cuh"

/// Clusters: up to eight blocks that run together and read one another's shared memory (compute capability 9.0 and
/// later).
namespace warpmeter::primer::cuda_tools {

/// Whether the stream's device has clusters.
inline bool has_clusters(StreamView stream) {
  int has = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, stream.device.index));
  return has != 0;
}

/// Launches `clusters` of kCluster blocks of kThreads threads along x; of one block, as any kernel is launched.
template <int kCluster, int kThreads, class... Parameters>
void launch_clusters(void (*kernel)(Parameters...), std::int64_t clusters, StreamView stream,
                     std::type_identity_t<Parameters>... parameters) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid_x(clusters * kCluster));
  config.blockDim = dim3(kThreads);
  config.stream = handle(stream);
  config.attrs = &attribute;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, parameters...));
}

/// From a block's largest score, in units of log2, and its sum of 2^(score - largest), the same in all its threads, to
/// the cluster's. leave_cluster() has to follow.
template <int kCluster>
__device__ __forceinline__ void merge_cluster(float& most, float& sum) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  __shared__ float2 of_block;
  if (threadIdx.x == 0) of_block = make_float2(most, sum);
  cluster.sync();
  float2 of_blocks[kCluster];
#pragma unroll
  for (int i = 0; i < kCluster; ++i) of_blocks[i] = *cluster.map_shared_rank(&of_block, i);
  cooperative_groups::this_cluster().barrier_arrive();  // has read
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCluster; ++i) most = fmaxf(most, of_blocks[i].x);
#pragma unroll
  for (int i = 0; i < kCluster; ++i) sum += of_blocks[i].y * ptx::exp2_approx(of_blocks[i].x - most);
#endif
}

/// No block ends before the others have read its memory.
__device__ __forceinline__ void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().barrier_wait();
#endif
}

}  // namespace warpmeter::primer::cuda_tools
