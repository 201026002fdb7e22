#pragma once

#include <cstdint>

#include "kernels/attention/detail/flash_kernels.hpp"

/// What the CPU decode driver and its per-ISA kernels say to each other: plain structs, no inline code.
namespace warpmeter::attention::decode_detail {

using flash_detail::Element;

/// Partial rows of o are this far apart: head_dim rounded up to the widest vector.
inline constexpr std::int64_t kRowPadding = 16;
/// Query rows of one stream at most.
inline constexpr std::int64_t kMostRows = 128;

/// What every stream of a call shares.
struct Shape {
  Element query_element = Element::fp32, cache_element = Element::fp32;
  std::int64_t head_dim = 0;
  std::int64_t tokens = 0, group = 0;  ///< row r of a key/value head is token r / group, head r % group
  std::int64_t block = 0;              ///< keys scored at once
  std::int64_t ahead_bytes = 0;        ///< how far ahead keys and values are asked for; 0: the caches hold them
  bool causal = true;
  float scale = 0;
};

/// One stream: query rows [first_row, first_row + rows) of some key/value heads over some of their blocks of keys; of a
/// block all heads are read before the next one, as they lie in pages. Partial p of head h lies at
/// o + h * part_head_stride + p * part_stride (rows kRowPadding-padded) and m, l + h * head_stride_ml + p *
/// row_stride_ml.
struct Stream {
  const Shape* shape = nullptr;
  std::int64_t heads = 1;
  const void* q = nullptr;  ///< token 0 of the first group's first head
  std::int64_t q_token_stride = 0, q_head_stride = 0;
  const void *k = nullptr, *v = nullptr;  ///< row 0 of the first head in page 0
  const std::int32_t* pages = nullptr;    ///< of this sequence
  std::int64_t page_size = 0, page_stride = 0, head_stride = 0, row_stride = 0;
  std::int64_t length = 0;  ///< keys of the sequence
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_block = 0, block_step = 1, blocks = 0;
  bool part_a_block = false;  ///< every block is a partial of its own, else the stream is one
  float *o = nullptr, *m = nullptr, *l = nullptr;
  std::int64_t part_stride = 0, row_stride_ml = 0;
  std::int64_t part_head_stride = 0, head_stride_ml = 0;
  float* scratch = nullptr;
};

struct Kernels {
  const char* isa;
  std::int64_t (*scratch)(const Shape& shape, std::int64_t rows, std::int64_t heads);  ///< floats
  void (*run)(const Stream& stream);
};

}  // namespace warpmeter::attention::decode_detail

namespace warpmeter::attention {
#define WM_DECODE_DECLARE(isa)                                                                           \
  namespace isa {                                                                                        \
  std::int64_t decode_scratch(const decode_detail::Shape& shape, std::int64_t rows, std::int64_t heads); \
  void decode_stream(const decode_detail::Stream& stream);                                               \
  }
WM_DECODE_DECLARE(generic)
#if defined(__x86_64__)
WM_DECODE_DECLARE(avx2)
WM_DECODE_DECLARE(avx512)
#endif
#undef WM_DECODE_DECLARE
}  // namespace warpmeter::attention
