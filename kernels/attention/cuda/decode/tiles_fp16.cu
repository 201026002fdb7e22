#include "kernels/attention/cuda/decode/short_sequence.cuh"
#include "kernels/attention/cuda/decode/tensor_core_launch.cuh"

namespace warpmeter::attention::cuda_decode {

void launch_usual_of(Fp16Tag, int width, int tiles, const Params& p, void* stream, TileResidency* fits) {
  launch_blocks<__half, DecodeBlock::usual>(width, tiles, p, stream, fits);
}

void launch_short_of(Fp16Tag, int width, const Params& p, void* stream) {
  width == 64 ? launch_short<__half, 64>(p, stream) : launch_short<__half, 128>(p, stream);
}

}  // namespace warpmeter::attention::cuda_decode
