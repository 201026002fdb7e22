#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// What a compiler makes of the eager formula on CUDA, and what it leaves undone: scale, mask and softmax in one pass
/// over S, in place, their backward in one pass over dP, in place; and under the causal mask what no query sees is
/// neither multiplied nor passed over. The products (cuBLAS) are split into panels of query rows that stop where their
/// last row sees, as many as pay; the passes stop at every row's own end.
///
/// fp32 (no TF32 anywhere), tf32, bf16, fp16; any lengths, head dims, strides and grouped heads. The same bits on every
/// run. Memory beside the operands: one score matrix in the forward, two in the backward, and cuBLAS's workspace (as
/// large as a score matrix, at most 32 MiB). Grouped heads that are not dense (batch, heads, rows, head_dim), or that
/// panels cut, take fp32 sums of dk and dv on top in 16-bit types.
[[nodiscard]] const Implementation& fused_cuda();

}  // namespace warpmeter::attention
