#pragma once

#include "kernels/attention/cuda/decode/params.hpp"

namespace warpmeter::attention::cuda_decode {

/// Query rows of one block of threads.
[[nodiscard]] int any_shape_rows(const Params& params);
/// Launches, or only says how many blocks fit on an SM.
void launch_any_shape(const Params& params, void* stream, int* blocks_a_processor);

}  // namespace warpmeter::attention::cuda_decode
