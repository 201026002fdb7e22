#pragma once

#include "kernels/attention/cuda/decode/tensor_core.cuh"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {

template <class T, int kD, int kTiles>
void launch_tiles(const Params& p, void* stream, int* blocks_a_processor) {
  using C = TileConfig<kD, kTiles>;
  const auto kernel = decode_tile_kernel<T, kD, kTiles>;
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  if (blocks_a_processor != nullptr) {
    WM_CUDA_CHECK(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_a_processor, kernel, C::kThreads, C::kSharedBytes));
    return;
  }
  const int row_blocks = (p.rows + C::kRows - 1) / C::kRows;
  const dim3 grid(static_cast<unsigned>(p.parts * row_blocks), static_cast<unsigned>(p.num_kv_heads),
                  static_cast<unsigned>(p.batch));
  kernel<<<grid, C::kThreads, C::kSharedBytes, static_cast<cudaStream_t>(stream)>>>(p);
  check_launch();
}

}  // namespace warpmeter::attention::cuda_decode
