#include "kernels/layers/cuda/adamw.cuh"

namespace warpmeter::layers::cuda {

AdamwLaunch adamw_copy(DType weight, DType gradient, DType moment) {
  return weight == DType::bf16 ? adamw_of<CopyMaster<__nv_bfloat16>, __nv_bfloat16>(gradient, moment)
                               : adamw_of<CopyMaster<__half>, __half>(gradient, moment);
}

}  // namespace warpmeter::layers::cuda
