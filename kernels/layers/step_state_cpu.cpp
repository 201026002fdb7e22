#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cpu {

void finish_step(const Context&, const FinishStep& a) {
  StepState& state = *a.state;
  if (state.overflow != 0) {
    ++state.skipped;
    state.good_steps = 0;
    if (a.scaling) state.loss_scale *= a.backoff;
    return;
  }
  ++state.step;
  if (a.scaling && ++state.good_steps >= a.growth_interval) {
    state.loss_scale *= a.growth;
    state.good_steps = 0;
  }
}

}  // namespace warpmeter::layers::cpu
