#pragma once

#include "kernels/attention/cuda/decode/params.hpp"

/// The instantiations of the tensor core kernel, behind functions that a host compiler can call.
namespace warpmeter::attention::cuda_decode {

struct Bf16Tag {};
struct Fp16Tag {};

/// Tiles of 16 query rows that a block of threads has.
[[nodiscard]] int tile_count(const Params& params);

/// What fits on the current device.
struct TileResidency {
  int blocks_a_processor = 0;  ///< 0: not one
  bool has_clusters = false;   ///< the code that this device runs knows clusters
  int clusters = 0;            ///< of params.parts blocks that run at once, where the join is theirs
};
/// The most blocks of a cluster that every device with clusters has.
inline constexpr int kPortableCluster = 8;

/// Blocks of a shape. width: 64, 128 or 256; tiles: 1 or 2. Launches, or only says what fits.
void launch_usual_of(Bf16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);
void launch_usual_of(Fp16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);
void launch_wide_of(Bf16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);
void launch_wide_of(Fp16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);
void launch_small_of(Bf16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);
void launch_small_of(Fp16Tag, int width, int tiles, const Params& params, void* stream, TileResidency* fits);

/// The kernel for short sequences, with params.short_groups; width: 64 or 128.
void launch_short_of(Bf16Tag, int width, const Params& params, void* stream);
void launch_short_of(Fp16Tag, int width, const Params& params, void* stream);

}  // namespace warpmeter::attention::cuda_decode
