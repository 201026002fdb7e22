#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

__global__ void finish_kernel(FinishStep a) {
  follow_previous();
  StepState state = *a.state;
  if (state.overflow != 0) {
    ++state.skipped;
    state.good_steps = 0;
    if (a.scaling) state.loss_scale *= a.backoff;
  } else {
    ++state.step;
    if (a.scaling && ++state.good_steps >= a.growth_interval) {
      state.loss_scale *= a.growth;
      state.good_steps = 0;
    }
  }
  *a.state = state;
}

}  // namespace

void finish_step(const Context& context, const FinishStep& a) {
  const DeviceGuard guard(context.device());
  launch(context, finish_kernel, 1, 1, 0, a);
  check_launch();
}

}  // namespace warpmeter::layers::cuda
