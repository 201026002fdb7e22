#pragma once

#include "kernels/attention/cuda/decode/params.hpp"

/// The instantiations of the tensor core kernel, behind functions that a host compiler can call.
namespace warpmeter::attention::cuda_decode {

struct Bf16Tag {};
struct Fp16Tag {};

/// Tiles of 16 query rows that a block of threads has.
[[nodiscard]] int tile_count(const Params& params);

/// width: 64, 128 or 256; tiles: 1 or 2. Launches, or only says how many blocks fit on an SM.
void launch_tiles_of(Bf16Tag, int width, int tiles, const Params& params, void* stream, int* blocks_a_processor);
void launch_tiles_of(Fp16Tag, int width, int tiles, const Params& params, void* stream, int* blocks_a_processor);

}  // namespace warpmeter::attention::cuda_decode
