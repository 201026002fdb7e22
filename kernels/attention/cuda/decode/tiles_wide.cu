#include "kernels/attention/cuda/decode/tensor_core_launch.cuh"

namespace warpmeter::attention::cuda_decode {

void launch_wide_of(Bf16Tag, int width, int tiles, const Params& p, void* stream, TileResidency* fits) {
  launch_blocks<__nv_bfloat16, DecodeBlock::wide>(width, tiles, p, stream, fits);
}
void launch_wide_of(Fp16Tag, int width, int tiles, const Params& p, void* stream, TileResidency* fits) {
  launch_blocks<__half, DecodeBlock::wide>(width, tiles, p, stream, fits);
}

}  // namespace warpmeter::attention::cuda_decode
