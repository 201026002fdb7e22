#include "kernels/attention/cuda/decode/any_shape.hpp"
#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/attention/cuda/decode/tiles.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::cuda_decode {
namespace {

/// Sixteen bytes at a time: 16-bit queries and cache of one type, rows that start on 16 bytes.
bool takes_tiles(const Params& p) {
  if (p.cache_element == Element::fp32 || p.query_element != p.cache_element || p.head_dim % 8 != 0) return false;
  const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  return aligned(p.q) && aligned(p.k) && aligned(p.v) && p.q_batch_stride % 8 == 0 && p.q_head_stride % 8 == 0 &&
         p.q_token_stride % 8 == 0 && p.row_stride % 8 == 0 && p.head_stride % 8 == 0 && p.page_stride % 8 == 0;
}

template <class Tag>
void launch_width(const Params& p, void* stream, int* blocks) {
  const int width = p.head_dim <= 64 ? 64 : p.head_dim <= 128 ? 128 : 256;
  launch_tiles_of(Tag{}, width, tile_count(p), p, stream, blocks);
}

void launch_any(const Params& p, void* stream, int* blocks) {
  if (!takes_tiles(p)) return launch_any_shape(p, stream, blocks);
  if (p.cache_element == Element::bf16) return launch_width<Bf16Tag>(p, stream, blocks);
  launch_width<Fp16Tag>(p, stream, blocks);
}

}  // namespace

/// Of 16 rows: one where that is enough, and where 32 rows' sums would not fit in the registers.
int tile_count(const Params& p) {
  return p.rows <= 16 || p.head_dim > 128 ? 1 : 2;
}

Residency residency(const Params& params) {
  Residency result{};
  const int rows = takes_tiles(params) ? 16 * tile_count(params) : any_shape_rows(params);
  result.row_blocks = (params.rows + rows - 1) / rows;
  launch_any(params, nullptr, &result.blocks_a_processor);
  return result;
}

const char* kernel_name(const Params& params) {
  return takes_tiles(params) ? "flash_decode_cuda_mma" : "flash_decode_cuda_fma";
}

void launch_streams(const Params& params, void* stream) {
  WM_CHECK(params.block % kWarpKeys == 0, "a block is a multiple of 16 keys");
  launch_any(params, stream, nullptr);
}

}  // namespace warpmeter::attention::cuda_decode
