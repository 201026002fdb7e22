#include "kernels/attention/cuda/decode/any_shape.hpp"
#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/attention/cuda/decode/tiles.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::cuda_decode {
namespace {

template <class Tag>
void launch_width(const Params& p, void* stream, TileResidency* fits) {
  const int width = p.head_dim <= 64 ? 64 : p.head_dim <= 128 ? 128 : 256;
  switch (p.shape) {
    case DecodeBlock::usual:
      return launch_usual_of(Tag{}, width, tile_count(p), p, stream, fits);
    case DecodeBlock::wide:
      return launch_wide_of(Tag{}, width, tile_count(p), p, stream, fits);
    case DecodeBlock::small:
      return launch_small_of(Tag{}, width, tile_count(p), p, stream, fits);
  }
}

void launch_tiles(const Params& p, void* stream, TileResidency* fits) {
  if (p.cache_element == Element::bf16) return launch_width<Bf16Tag>(p, stream, fits);
  launch_width<Fp16Tag>(p, stream, fits);
}

}  // namespace

bool on_tensor_cores(const Params& p) {
  if (p.cache_element == Element::fp32 || p.query_element != p.cache_element || p.head_dim % 8 != 0) return false;
  const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  return aligned(p.q) && aligned(p.k) && aligned(p.v) && p.q_batch_stride % 8 == 0 && p.q_head_stride % 8 == 0 &&
         p.q_token_stride % 8 == 0 && p.row_stride % 8 == 0 && p.head_stride % 8 == 0 && p.page_stride % 8 == 0;
}

/// Of 16 rows: one where that is enough, and where 32 rows' sums would not fit in the registers.
int tile_count(const Params& p) {
  return p.rows <= 16 || p.head_dim > 128 ? 1 : 2;
}

int row_block_rows(const Params& params) {
  return on_tensor_cores(params) ? 16 * tile_count(params) : any_shape_rows(params);
}

bool has_blocks(const Params& params) {
  TileResidency fits;
  launch_tiles(params, nullptr, &fits);
  return fits.blocks_a_processor > 0;
}

Residency residency(const Params& params) {
  Residency result{};
  result.row_block_rows = row_block_rows(params);
  result.row_blocks = (params.rows + result.row_block_rows - 1) / result.row_block_rows;
  if (on_tensor_cores(params)) {
    TileResidency fits;
    launch_tiles(params, nullptr, &fits);
    result.blocks_a_processor = fits.blocks_a_processor;
    result.clusters = fits.has_clusters;
  } else {
    launch_any_shape(params, nullptr, &result.blocks_a_processor);
  }
  return result;
}

int active_clusters(const Params& params) {
  TileResidency fits;
  launch_tiles(params, nullptr, &fits);
  return fits.clusters;
}

int short_groups(const Params& p) {
  const bool dense = p.row_stride == p.head_dim && (p.head_dim == 64 || p.head_dim == 128);
  if (p.shape != DecodeBlock::usual || !on_tensor_cores(p) || !dense || p.uniform_length == 0 || p.tokens != 1 ||
      p.rows > kMostShortRows || p.join != Join::cluster || p.parts != kShortParts || p.round_robin) {
    return 0;
  }
  // Results are written eight bytes at a time.
  if (reinterpret_cast<std::uintptr_t>(p.o) % 8 != 0 || p.o_batch_stride % 4 != 0 || p.o_head_stride % 4 != 0) return 0;
  const int longest_part = (p.uniform_blocks + p.parts - 1) / p.parts * p.block;
  const int groups = (longest_part + kShortWarps * kWarpKeys - 1) / (kShortWarps * kWarpKeys);
  return groups <= kMostShortGroups ? groups : 0;
}

const char* kernel_name(const Params& params) {
  return on_tensor_cores(params) ? "flash_decode_cuda_mma" : "flash_decode_cuda_fma";
}

void launch_streams(const Params& params, void* stream) {
  WM_CHECK(params.block % kWarpKeys == 0, "a block is a multiple of 16 keys");
  if (params.short_groups > 0) {
    WM_CHECK(params.short_groups == short_groups(params), "a sequence is not short");
    if (params.cache_element == Element::bf16) return launch_short_of(Bf16Tag{}, params.head_dim, params, stream);
    return launch_short_of(Fp16Tag{}, params.head_dim, params, stream);
  }
  if (on_tensor_cores(params)) return launch_tiles(params, stream, nullptr);
  WM_CHECK(params.join == Join::none || params.join == Join::kernel, "joins within a launch are the tensor cores' own");
  launch_any_shape(params, stream, nullptr);
}

}  // namespace warpmeter::attention::cuda_decode
