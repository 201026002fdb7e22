#pragma once

#include "kernels/layers/linear_epilogue.hpp"

/// What a build with the Hopper kernels defines of linear_epilogue.hpp; the public functions hand on to these.
namespace warpmeter::layers::cuda {
[[nodiscard]] bool fuses(Device device, const SwigluLinear& arguments);
[[nodiscard]] bool fuses(Device device, const RopeLinear& arguments);
void swiglu_linear(const Context& context, const SwigluLinear& arguments);
void rope_linear(const Context& context, const RopeLinear& arguments);
}  // namespace warpmeter::layers::cuda
