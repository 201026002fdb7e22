#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// FlashAttention on CUDA: tiled online softmax, scores never in memory, LSE kept, recomputing backward. Any lengths,
/// Sq != Sk, causal (bottom-right), grouped heads, head dims 1 to 256, any strides with contiguous head_dim; operands
/// whose rows are not 16-byte aligned run on kernels that copy element by element. Nothing is kept for the backward
/// beside O and LSE.
///
/// bf16 and fp16 run on mma.sync (cuda/flash_sm80/, sm_80 and later).
///
/// Backward: per key block; dQ is added up in fp32 by atomics, whose order varies, unless problem.deterministic: then
/// key blocks take turns and every run gives the same bits. Forward, dK and dV have the same bits on every run anyway.
/// Memory beside the operands, in the backward alone: LSE and D for each query row and dQ in fp32, rows rounded up to
/// the kernel's tile and head_dim to its size (32, 64, 96, 128, 256); when deterministic an int a query tile.
///
/// Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
///
/// `flash_cuda` picks the fastest path for the device and problem; `flash_sm80_cuda` is the mma.sync path by name.
[[nodiscard]] const Implementation& flash_cuda();
[[nodiscard]] const Implementation& flash_sm80_cuda();

}  // namespace warpmeter::attention
