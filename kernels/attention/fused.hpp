#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// What a compiler makes of the eager formula: scale, mask and softmax in one pass over S, in place, and their
/// backward in one pass over dP, in place. One score matrix lives in the forward, which leaves it as P, and two in the
/// backward. What no query sees under the causal mask is neither multiplied nor passed over (whole panels of the
/// products, single elements of the pass). S is stored unscaled in the problem's type, with the limits of naive.hpp.
const Implementation& fused_cpu();

}  // namespace warpmeter::attention
