#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// FlashAttention on the CPU (fp32, bf16, fp16): tiled online softmax, scores never in memory, LSE kept, recomputing
/// backward. bf16 is multiplied as it is by AVX512_BF16 or AMX where the machine has them, P and dS rounded to bf16,
/// sums and softmax fp32 (kernels flash_cpu_avx512_bf16, flash_cpu_amx_bf16; compute_path() is then half, else fp32).
/// Otherwise 16-bit operands are converted to fp32 as they are packed and results are rounded once. Any lengths,
/// Sq != Sk, causal (bottom-right), grouped heads, head dims 1 to 256.
///
/// Parallel over (batch, head, block of queries) forward and (batch, key/value head, block of keys) backward, where
/// one pass computes the five products of a tile. Key blocks add their shares of dQ in turn, so every result has the
/// same bits on every run and for any number of threads. Beside O and LSE the forward keeps for the backward what LSE
/// lost when it was rounded to fp32 (one float a query row): with it gradients are right for scores of any size.
///
/// Memory beside the operands: scratch for each thread; in the backward three fp32 numbers a query row,
/// one int32 a block of queries, and for 16-bit types dQ in fp32.
///
/// Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
[[nodiscard]] const Implementation& flash_cpu();

/// The same forward with the notes' backward: a pass for dQ over key blocks, then one for dK and dV over query blocks,
/// P recomputed in both (seven products a tile instead of five, and no waiting between blocks).
[[nodiscard]] const Implementation& flash_two_pass_cpu();

}  // namespace warpmeter::attention
