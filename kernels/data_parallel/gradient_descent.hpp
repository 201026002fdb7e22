#pragma once

#include <cstdint>

#include "kernels/layers/step_state.hpp"
#include "kernels/runtime/context.hpp"

namespace warpmeter::data_parallel {

/// weight -= state->learning_rate * gradient (times state->update_scale with scale_gradients), nothing where
/// state->overflow is set. fp32, dense arrays of `count`.
struct GradientDescent {
  std::int64_t count = 0;
  float* weight = nullptr;
  const float* gradient = nullptr;
  bool scale_gradients = true;
  const layers::StepState* state = nullptr;
};
void gradient_descent(const Context& context, const GradientDescent& arguments);

namespace cuda {
void gradient_descent(const Context& context, const GradientDescent& arguments);
}

}  // namespace warpmeter::data_parallel
