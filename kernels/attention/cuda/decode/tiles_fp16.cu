#include "kernels/attention/cuda/decode/short_sequence.cuh"
#include "kernels/attention/cuda/decode/tensor_core_launch.cuh"
#include "kernels/attention/cuda/decode/tiles.hpp"

namespace warpmeter::attention::cuda_decode {

void launch_tiles_of(Fp16Tag, int width, int tiles, const Params& p, void* stream, TileResidency* fits) {
  if (width == 64) {
    tiles == 1 ? launch_tiles<__half, 64, 1>(p, stream, fits) : launch_tiles<__half, 64, 2>(p, stream, fits);
  } else if (width == 128) {
    tiles == 1 ? launch_tiles<__half, 128, 1>(p, stream, fits) : launch_tiles<__half, 128, 2>(p, stream, fits);
  } else {
    launch_tiles<__half, 256, 1>(p, stream, fits);
  }
}

void launch_short_of(Fp16Tag, int width, const Params& p, void* stream) {
  width == 64 ? launch_short<__half, 64>(p, stream) : launch_short<__half, 128>(p, stream);
}

}  // namespace warpmeter::attention::cuda_decode
