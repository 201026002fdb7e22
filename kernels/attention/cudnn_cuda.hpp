#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// cuDNN's fused attention, the vendor's own, through the graph API of its header-only frontend: the yardstick inside
/// the tool. bf16 and fp16, head dims in multiples of 8 up to 256, grouped heads, causal (bottom-right) with no more
/// queries than keys, any strides that keep rows 16-byte aligned; and of those what the installed version takes on the
/// current device, in cuDNN's own words otherwise. The backward may vary from run to run unless problem.deterministic.
///
/// libcudnn is opened when first needed. Where it is absent every problem is unsupported, with the loader's reason.
///
/// Plans are built once for each problem and kept for the thread, so that unsupported() and memory_plan() cost a build
/// the first time. They speak for the calling thread's current device. Workspace comes from the allocator; what cuDNN
/// loads for its kernels is its own and not counted.
[[nodiscard]] const Implementation& cudnn_cuda();

}  // namespace warpmeter::attention
