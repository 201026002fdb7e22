#pragma once

#include <algorithm>

#include "kernels/attention/cuda/decode/tensor_core.cuh"
#include "kernels/attention/cuda/decode/tiles.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {

template <int kD, int kTiles>
cudaLaunchConfig_t tile_config(const Params& p, cudaLaunchAttribute* cluster) {
  using C = TileConfig<kD, kTiles>;
  const int row_blocks = (p.rows + C::kRows - 1) / C::kRows;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.parts * row_blocks), static_cast<unsigned>(p.num_kv_heads),
                        static_cast<unsigned>(p.batch));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::shared_bytes(std::min(p.stages, C::kStages));
  if (p.join == Join::cluster) {
    cluster->id = cudaLaunchAttributeClusterDimension;
    cluster->val.clusterDim = {static_cast<unsigned>(p.parts), 1, 1};
    config.attrs = cluster;
    config.numAttrs = 1;
  }
  return config;
}

/// Launches, or only says what fits on the current device.
template <class T, int kD, int kTiles>
void launch_tiles(const Params& p, void* stream, TileResidency* fits) {
  using C = TileConfig<kD, kTiles>;
  const auto kernel = decode_tile_kernel<T, kD, kTiles>;
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::shared_bytes(C::kStages)));
  if (p.join == Join::cluster && p.parts > kPortableCluster) {
    WM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute cluster{};
  if (fits != nullptr) {
    WM_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits->blocks_a_processor, kernel, C::kThreads,
                                                                C::shared_bytes(C::kStages)));
    cudaFuncAttributes attributes{};
    WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    fits->has_clusters = attributes.binaryVersion >= 90 && attributes.ptxVersion >= 90;
    if (fits->has_clusters && p.join == Join::cluster) {
      const cudaLaunchConfig_t config = tile_config<kD, kTiles>(p, &cluster);
      WM_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&fits->clusters, kernel, &config));
    }
    return;
  }
  cudaLaunchConfig_t config = tile_config<kD, kTiles>(p, &cluster);
  config.stream = static_cast<cudaStream_t>(stream);
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

}  // namespace warpmeter::attention::cuda_decode
