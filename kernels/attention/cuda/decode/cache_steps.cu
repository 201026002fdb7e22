// Rows into a KV cache, out of it, and normalized parts joined: the steps around the attention of chunked prefill.
#include <bit>
#include <type_traits>

#include "kernels/attention/cuda/decode/common.cuh"
#include "kernels/attention/detail/kv_append.hpp"
#include "kernels/attention/detail/prefill_steps.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::detail {
namespace {

using cuda_decode::Element;
using cuda_decode::load_element;
using cuda_decode::store_element;

constexpr int kThreads = 256;

Element element_of(DType dtype) {
  return dtype == DType::bf16 ? Element::bf16 : dtype == DType::fp16 ? Element::fp16 : Element::fp32;
}
/// Rows of one block: a thread has a column of one.
int rows_of_block(std::int64_t head_dim) {
  return head_dim >= kThreads ? 1 : kThreads / static_cast<int>(head_dim);
}

__global__ void append_kernel(KvAppend a, Element from, Element to, int block_rows) {
  const std::int64_t b = blockIdx.z;
  const std::int64_t h = blockIdx.y;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * block_rows + threadIdx.x / a.head_dim;
  const std::int64_t c = threadIdx.x % a.head_dim;
  if (threadIdx.x / a.head_dim >= block_rows || t >= a.device_tokens[b]) return;
  const std::int64_t position = a.lengths[b] - a.device_tokens[b] + t;
  const std::int64_t page = a.pages[b * a.pages_stride + position / a.page_size];
  const std::int64_t at = page * a.page_stride + h * a.head_stride + position % a.page_size * a.row_stride + c;
  store_element(a.cache_k, at, to,
                load_element(a.k.data, b * a.k.batch_stride + h * a.k.head_stride + t * a.k.row_stride + c, from));
  store_element(a.cache_v, at, to,
                load_element(a.v.data, b * a.v.batch_stride + h * a.v.head_stride + t * a.v.row_stride + c, from));
}

struct GatherParams {
  const void *k, *v;
  void *out_k, *out_v;
  const std::int32_t* pages;  // of the sequence
  std::int64_t page_size, page_stride, head_stride, row_stride, length, head_dim;
};

__global__ void gather_kernel(GatherParams g, Element from, Element to, int block_rows) {
  const std::int64_t h = blockIdx.y;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * block_rows + threadIdx.x / g.head_dim;
  const std::int64_t c = threadIdx.x % g.head_dim;
  if (threadIdx.x / g.head_dim >= block_rows || t >= g.length) return;
  const std::int64_t at =
      g.pages[t / g.page_size] * g.page_stride + h * g.head_stride + t % g.page_size * g.row_stride + c;
  const std::int64_t out = (h * g.length + t) * g.head_dim + c;
  store_element(g.out_k, out, to, load_element(g.k, at, from));
  store_element(g.out_v, out, to, load_element(g.v, at, from));
}

template <class Bits>
__global__ void copy_queries_kernel(QueryCopies q, int block_rows) {
  const std::int64_t h = blockIdx.y;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * block_rows + threadIdx.x / q.head_dim;
  const std::int64_t c = threadIdx.x % q.head_dim;
  if (threadIdx.x / q.head_dim >= block_rows || r >= q.rows) return;
  const Bits value = static_cast<const Bits*>(q.q.data)[h * q.q.head_stride + r * q.q.row_stride + c];
  const std::int64_t at = (h * q.rows + r) * q.head_dim + c;
  for (std::int64_t i = 0; i < q.copies; ++i) {
    static_cast<Bits*>(q.out)[i * q.heads * q.rows * q.head_dim + at] = value;
  }
}

/// The largest LSE of a row's parts, which lie `stride` apart; whether any has seen keys. A part that is NaN has.
__device__ __forceinline__ bool largest_lse(const NormalizedParts& p, std::int64_t stride, std::int64_t row,
                                            float& top) {
  top = cuda_decode::kMinusInfinity;
  bool seen = false;
  for (std::int64_t i = 0; i < p.parts; ++i) {
    const float lse = p.lse[i * stride + row];
    top = fmaxf(top, lse);
    seen = seen || lse != cuda_decode::kMinusInfinity;
  }
  return seen;
}

__global__ void merge_normalized_kernel(NormalizedParts p, Element element, int block_rows) {
  const std::int64_t h = blockIdx.y;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * block_rows + threadIdx.x / p.head_dim;
  const std::int64_t c = threadIdx.x % p.head_dim;
  if (threadIdx.x / p.head_dim >= block_rows || r >= p.rows) return;
  const std::int64_t stride = p.heads * p.rows;
  const std::int64_t row = h * p.rows + r;
  float top;
  const bool seen = largest_lse(p, stride, row, top);
  float sum = 0, value = 0;
  if (seen) {
    for (std::int64_t i = 0; i < p.parts; ++i) {
      const float weight = exp2f((p.lse[i * stride + row] - top) * cuda_decode::kLog2e);
      sum += weight;
      value += weight * load_element(p.o, (i * stride + row) * p.head_dim + c, element);
    }
    value /= sum;
  }
  store_element(p.out.data, h * p.out.head_stride + r * p.out.row_stride + c, element, value);
  if (c == 0) p.out_lse[row] = sum == 0 ? cuda_decode::kMinusInfinity : top + logf(sum);
}

/// The same for 16-bit rows of whole 16-byte pieces: a thread has eight columns.
template <class T>
__global__ void merge_normalized_wide_kernel(NormalizedParts p, int block_rows) {
  constexpr int kColumns = 8;
  const int threads = static_cast<int>(p.head_dim) / kColumns;  // of a row
  const std::int64_t h = blockIdx.y;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * block_rows + threadIdx.x / threads;
  const std::int64_t c = threadIdx.x % threads * kColumns;
  if (threadIdx.x / threads >= block_rows || r >= p.rows) return;
  const std::int64_t stride = p.heads * p.rows;
  const std::int64_t row = h * p.rows + r;
  float top;
  const bool seen = largest_lse(p, stride, row, top);
  float sum = 0, values[kColumns] = {};
  if (seen) {
#pragma unroll 4
    for (std::int64_t i = 0; i < p.parts; ++i) {
      const float weight = exp2f((p.lse[i * stride + row] - top) * cuda_decode::kLog2e);
      const uint4 bits =
          *reinterpret_cast<const uint4*>(static_cast<const T*>(p.o) + (i * stride + row) * p.head_dim + c);
      const T* const part = reinterpret_cast<const T*>(&bits);
      sum += weight;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) values[j] += weight * cuda_decode::to_float(part[j]);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) values[j] /= sum;
  }
  T* const to = static_cast<T*>(p.out.data) + h * p.out.head_stride + r * p.out.row_stride + c;
  constexpr Element kElement = std::is_same_v<T, __nv_bfloat16> ? Element::bf16 : Element::fp16;
  alignas(16) T rounded[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) store_element(rounded, j, kElement, values[j]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(rounded);
  if (c == 0) p.out_lse[row] = sum == 0 ? cuda_decode::kMinusInfinity : top + logf(sum);
}

/// What lies in pages; sizes and strides in pieces of 16 bytes, but page_shift: log2 of the page's rows.
struct RowsParams {
  const uint4 *k, *v;
  uint4 *out_k, *out_v;
  const std::int32_t* pages;
  std::int64_t pages_stride, page_stride, head_stride, row_stride, first, rows;
  int row_pieces, page_shift;
};

__global__ void rows_kernel(RowsParams p, int block_rows) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t b = blockIdx.z;
  const std::int64_t h = blockIdx.y;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * block_rows + thread / p.row_pieces;
  const int c = thread % p.row_pieces;
  if (thread / p.row_pieces >= block_rows || t >= p.rows) return;
  const std::int64_t position = p.first + t;
  const std::int64_t page = p.pages[b * p.pages_stride + (position >> p.page_shift)];
  const std::int64_t row = position & ((std::int64_t{1} << p.page_shift) - 1);
  const std::int64_t at = page * p.page_stride + h * p.head_stride + row * p.row_stride + c;
  const std::int64_t out = ((b * gridDim.y + h) * p.rows + t) * p.row_pieces + c;
  const uint4 k = p.k[at], v = p.v[at];
  p.out_k[out] = k;
  p.out_v[out] = v;
}

/// Whether rows of 16-bit elements can be moved 16 bytes at a time.
bool whole_pieces(DType dtype, std::int64_t head_dim, const void* data, std::int64_t head_stride,
                  std::int64_t row_stride) {
  return size_of(dtype) == 2 && head_dim % 8 == 0 && head_stride % 8 == 0 && row_stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

dim3 grid_of(std::int64_t rows, int block_rows, std::int64_t heads, std::int64_t batch) {
  return {static_cast<unsigned>((rows + block_rows - 1) / block_rows), static_cast<unsigned>(heads),
          static_cast<unsigned>(batch)};
}

}  // namespace

void kv_append_cuda(const Context& context, const KvAppend& append) {
  const int rows = rows_of_block(append.head_dim);
  append_kernel<<<grid_of(append.most_tokens, rows, append.heads, append.batch), kThreads, 0,
                  static_cast<cudaStream_t>(context.stream.handle)>>>(append, element_of(append.from),
                                                                      element_of(append.to), rows);
  check_launch();
}

void kv_gather_cuda(const Context& context, const KvGather& gather) {
  const KvView& view = gather.view;
  const int rows = rows_of_block(view.head_dim);
  const GatherParams params{view.k,
                            view.v,
                            gather.k,
                            gather.v,
                            view.pages + gather.sequence * view.pages_stride,
                            view.page_size,
                            view.page_stride,
                            view.head_stride,
                            view.row_stride,
                            gather.length,
                            view.head_dim};
  gather_kernel<<<grid_of(gather.length, rows, view.num_kv_heads, 1), kThreads, 0,
                  static_cast<cudaStream_t>(context.stream.handle)>>>(params, element_of(view.dtype),
                                                                      element_of(gather.dtype), rows);
  check_launch();
}

void kv_rows_cuda(const Context& context, const KvRows& rows) {
  constexpr std::int64_t kPiece = 8;  // elements
  const KvView& view = rows.view;
  WM_CHECK(view.paged && whole_pieces(view.dtype, view.head_dim, view.k, 0, view.row_stride) &&
               whole_pieces(view.dtype, view.head_dim, view.v, 0, view.row_stride),
           "rows of whole 16-byte pieces, in pages");
  const RowsParams params{static_cast<const uint4*>(view.k),
                          static_cast<const uint4*>(view.v),
                          static_cast<uint4*>(rows.k),
                          static_cast<uint4*>(rows.v),
                          view.pages,
                          view.pages_stride,
                          view.page_stride / kPiece,
                          view.head_stride / kPiece,
                          view.row_stride / kPiece,
                          rows.first,
                          rows.rows,
                          static_cast<int>(view.head_dim / kPiece),
                          std::countr_zero(static_cast<std::uint64_t>(view.page_size))};
  const int block_rows = rows_of_block(params.row_pieces);
  rows_kernel<<<grid_of(rows.rows, block_rows, view.num_kv_heads, view.batch), kThreads, 0,
                static_cast<cudaStream_t>(context.stream.handle)>>>(params, block_rows);
  check_launch();
}

void copy_queries_cuda(const Context& context, const QueryCopies& copies) {
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  if (whole_pieces(copies.dtype, copies.head_dim, copies.q.data, copies.q.head_stride, copies.q.row_stride)) {
    QueryCopies pieces = copies;  // a column is one of 16 bytes
    pieces.head_dim /= 8;
    pieces.q.head_stride /= 8;
    pieces.q.row_stride /= 8;
    const int rows = rows_of_block(pieces.head_dim);
    copy_queries_kernel<uint4><<<grid_of(copies.rows, rows, copies.heads, 1), kThreads, 0, stream>>>(pieces, rows);
    check_launch();
    return;
  }
  const int rows = rows_of_block(copies.head_dim);
  const dim3 grid = grid_of(copies.rows, rows, copies.heads, 1);
  if (size_of(copies.dtype) == 2) {
    copy_queries_kernel<std::uint16_t><<<grid, kThreads, 0, stream>>>(copies, rows);
  } else {
    copy_queries_kernel<std::uint32_t><<<grid, kThreads, 0, stream>>>(copies, rows);
  }
  check_launch();
}

void merge_normalized_cuda(const Context& context, const NormalizedParts& parts) {
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  if (whole_pieces(parts.dtype, parts.head_dim, parts.out.data, parts.out.head_stride, parts.out.row_stride)) {
    const int rows = rows_of_block(parts.head_dim / 8);
    const dim3 grid = grid_of(parts.rows, rows, parts.heads, 1);
    if (parts.dtype == DType::bf16) {
      merge_normalized_wide_kernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(parts, rows);
    } else {
      merge_normalized_wide_kernel<__half><<<grid, kThreads, 0, stream>>>(parts, rows);
    }
    check_launch();
    return;
  }
  const int rows = rows_of_block(parts.head_dim);
  merge_normalized_kernel<<<grid_of(parts.rows, rows, parts.heads, 1), kThreads, 0,
                            static_cast<cudaStream_t>(context.stream.handle)>>>(parts, element_of(parts.dtype), rows);
  check_launch();
}

}  // namespace warpmeter::attention::detail
