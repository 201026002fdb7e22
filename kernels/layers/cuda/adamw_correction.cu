#include "kernels/layers/cuda/adamw.cuh"

namespace warpmeter::layers::cuda {

AdamwLaunch adamw_correction(DType gradient, DType moment) {
  return adamw_of<CorrectionMaster, __nv_bfloat16>(gradient, moment);
}

}  // namespace warpmeter::layers::cuda
