#pragma once

#include <algorithm>

#include "kernels/attention/cuda/decode/tensor_core.cuh"
#include "kernels/attention/cuda/decode/tiles.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {

template <class C>
cudaLaunchConfig_t tile_config(const Params& p, cudaLaunchAttribute* cluster) {
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

/// Launches, or only says what fits on the current device: nothing where a block takes more than it gives.
template <class T, int kD, int kTiles, DecodeBlock kShape>
void launch_tiles(const Params& p, void* stream, TileResidency* fits) {
  using C = TileConfig<kD, kTiles, kShape>;
  const auto kernel = decode_tile_kernel<T, kD, kTiles, kShape>;
  if (fits != nullptr) {
    int device = 0, most = 0;
    WM_CUDA_CHECK(cudaGetDevice(&device));
    WM_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (C::shared_bytes(C::kStages) > most) return;
  }
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
      const cudaLaunchConfig_t config = tile_config<C>(p, &cluster);
      WM_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&fits->clusters, kernel, &config));
    }
    return;
  }
  cudaLaunchConfig_t config = tile_config<C>(p, &cluster);
  config.stream = static_cast<cudaStream_t>(stream);
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

/// width: 64, 128 or 256; tiles: 1 or 2. Wide blocks have one tile of up to 128 columns, or there are none.
template <class T, DecodeBlock kShape>
void launch_blocks(int width, int tiles, const Params& p, void* stream, TileResidency* fits) {
  if (tiles == 1) {
    if (width == 64) return launch_tiles<T, 64, 1, kShape>(p, stream, fits);
    if (width == 128) return launch_tiles<T, 128, 1, kShape>(p, stream, fits);
  }
  if constexpr (kShape != DecodeBlock::wide) {
    if (width == 64) return launch_tiles<T, 64, 2, kShape>(p, stream, fits);
    if (width == 128) return launch_tiles<T, 128, 2, kShape>(p, stream, fits);
    return launch_tiles<T, 256, 1, kShape>(p, stream, fits);
  } else {
    WM_CHECK(fits != nullptr, "a wide block has 16 rows of up to 128 columns");
  }
}

}  // namespace warpmeter::attention::cuda_decode
