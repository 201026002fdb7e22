#include "kernels/layers/cuda/adamw.cuh"

namespace warpmeter::layers::cuda {

AdamwLaunch adamw_plain(DType weight, DType gradient, DType moment) {
  switch (weight) {
    case DType::fp32:
      return adamw_of<PlainMaster<float>, float>(gradient, moment);
    case DType::bf16:
      return adamw_of<PlainMaster<__nv_bfloat16>, __nv_bfloat16>(gradient, moment);
    case DType::fp16:
      return adamw_of<PlainMaster<__half>, __half>(gradient, moment);
    default:
      return nullptr;
  }
}

}  // namespace warpmeter::layers::cuda
