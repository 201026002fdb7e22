#pragma once

#include <cstddef>
#include <memory>

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// FlashAttention on CUDA (fp32, tf32, bf16, fp16): tiled online softmax, scores never in memory, LSE kept, recomputing
/// backward. Any lengths, Sq != Sk, causal (bottom-right), grouped heads, head dims 1 to 256, any strides with
/// contiguous head_dim; operands whose rows are not 16-byte aligned are copied element by element.
///
/// On mma.sync (cuda/flash_sm80/, sm_80 and later): bf16 and fp16 on 16-bit products; fp32 by three TF32 products of
/// split operands; tf32 by one, but for the scores, whose products are split as well. On Hopper the forward of bf16 and
/// fp16 with head dims 64, 80, 96, 128 and 256 runs on wgmma and the copy engine (cuda/flash_sm90/).
///
/// Backward: per key block; dQ is added up in fp32 by atomics, whose order varies, unless problem.deterministic: then
/// key blocks take turns and every run gives the same bits. Forward, dK and dV have the same bits on every run anyway.
///
/// Memory beside the operands. fp32 and tf32: from forward to backward what LSE lost when it was rounded (a float a
/// query row: with it gradients are right for scores of any size); in the backward three floats a query row, rows
/// rounded up to
/// 64. bf16 and fp16, in the backward alone: two floats a query row and dQ in fp32, rows rounded up to the kernel's
/// tile and head_dim to its size (32, 64, 96, 128, 256). When deterministic an int a query tile.
///
/// Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
///
/// `flash_cuda` picks the fastest path for the device and problem. The others are one path by name: `flash_sm80_cuda`
/// mma.sync throughout; `flash_sm90_cuda` Hopper's forward, with the backward of flash_sm80 (operands with rows that
/// are not 16-byte aligned take flash_sm80's forward too).
[[nodiscard]] const Implementation& flash_cuda();
[[nodiscard]] const Implementation& flash_sm80_cuda();
[[nodiscard]] const Implementation& flash_sm90_cuda();

/// The same forward with the notes' backward: a kernel for dQ by query tiles, then one for dK and dV by key tiles, P
/// recomputed in both (seven products a tile instead of five), no atomics: the same bits on every run. 16-bit types
/// have tf32 products, in which their elements are exact, but for the scores, which are added up as the forward does.
/// In the backward three floats a query row, rows rounded up to 64.
[[nodiscard]] const Implementation& flash_two_pass_cuda();

/// flash_sm80 or flash_two_pass as on a device whose thread blocks have at most `shared_limit` bytes of shared memory
/// (cuda/flash_sm80/kernels.hpp): tests run the tiles of other devices.
[[nodiscard]] std::unique_ptr<Implementation> make_flash_sm80_cuda(bool two_pass, std::size_t shared_limit);

}  // namespace warpmeter::attention
