#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// Attention one operation at a time on CUDA, as an eager framework runs it (naive.hpp has the operations and what is
/// held when): products on cuBLAS, a kernel each for scale, mask and softmax, and for their gradients.
///
/// fp32 (no TF32 anywhere), tf32, bf16, fp16; any lengths, head dims, strides and grouped heads. The same bits on every
/// run. Memory beside the operands: score matrices in the problem's storage type, three at most in the forward (two
/// without a mask), three in the backward, and cuBLAS's workspace (as large as a score matrix, at most 32 MiB). Grouped
/// heads in layouts other than dense (batch, heads, rows, head_dim) take fp32 sums of dk and dv on top in 16-bit types.
[[nodiscard]] const Implementation& naive_cuda();

}  // namespace warpmeter::attention
