// Flash decoding for what the tensor core kernel does not take: fp32 caches, head dims that are no multiple of 8,
// queries of another type than the cache.
//
// A block of eight warps has one stream of one key/value head and up to kRows of its query rows. A warp takes every
// eighth group of four keys; a lane has every 32nd column. The lanes' products are summed by shuffles, the softmax is
// the warp's own, and the eight results are joined at the end. fp32 arithmetic throughout.
//
// Grid: (part x row block, key/value head, sequence).

#include "kernels/attention/cuda/decode/any_shape.hpp"
#include "kernels/attention/cuda/decode/common.cuh"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kKeys = 4;  // of a warp at once

template <class T, int kColumns, int kRows>
__global__ void __launch_bounds__(kThreads) decode_any_kernel(const Params p) {
  constexpr int kWidth = kColumns * 32;
  extern __shared__ float joined[];  // (kWarps, kRows, kWidth), then m and l
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row_blocks = (p.rows + kRows - 1) / kRows;
  const int part = blockIdx.x / row_blocks;
  const int first_row = blockIdx.x % row_blocks * kRows;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const Stream stream(p, batch, part, kKeys);
  const T* const k = static_cast<const T*>(p.k) + kv_head * p.head_stride;
  const T* const v = static_cast<const T*>(p.v) + kv_head * p.head_stride;
  const float factor = p.scale * kLog2e;

  float q[kRows][kColumns], o[kRows][kColumns], m[kRows], l[kRows];
  int limit[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(first_row + r, p.rows - 1);
    limit[r] = limit_of(p, stream.length, row);
    m[r] = kMinusInfinity;
    l[r] = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = c * 32 + lane;
      q[r][c] = column < p.head_dim ? load_element(p.q, query_offset(p, batch, kv_head, row) + column, p.query_element)
                                    : 0.0f;
      o[r][c] = 0;
    }
  }

  // The page of the next group is looked up while this one is worked on.
  std::int64_t next_page = warp < stream.groups ? page_base(p, batch, stream.key(warp, kKeys)) : 0;
  for (int group = warp; group < stream.groups; group += kWarps) {
    const int key0 = stream.key(group, kKeys);
    const std::int64_t start = next_page + row_in_page(p, key0) * p.row_stride;
    if (group + kWarps < stream.groups) next_page = page_base(p, batch, stream.key(group + kWarps, kKeys));
    float key[kKeys][kColumns], value[kKeys][kColumns];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = c * 32 + lane;
        const bool there = key0 + j < stream.length && column < p.head_dim;
        const std::int64_t at = start + j * p.row_stride + column;
        key[j][c] = there ? to_float(k[at]) : 0.0f;
        value[j][c] = there ? to_float(v[at]) : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float s[kKeys];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        s[j] = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[j] = fmaf(q[r][c], key[j][c], s[j]);
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) s[j] += __shfl_xor_sync(0xffffffffu, s[j], distance);
      }
      float top = m[r];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        if (key0 + j >= limit[r]) s[j] = kMinusInfinity;
        top = fmaxf(top, s[j]);
      }
      const float from = top == kMinusInfinity ? 0.0f : top;
      const float shrink = exp2f((m[r] - from) * factor);
      m[r] = top;
      l[r] *= shrink;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[r][c] *= shrink;
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const float weight = exp2f((s[j] - from) * factor);
        l[r] += weight;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) o[r][c] = fmaf(weight, value[j][c], o[r][c]);
      }
    }
  }

  float* const joined_m = joined + kWarps * kRows * kWidth;
  float* const joined_l = joined_m + kWarps * kRows;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) joined[row * kWidth + c * 32 + lane] = o[r][c];
    if (lane == 0) {
      joined_m[row] = m[r];
      joined_l[row] = l[r];
    }
  }
  __syncthreads();
  write_rows<kWarps, kThreads>(p, batch, kv_head, part, first_row, kRows, joined, joined_m, joined_l, kWidth);
}

template <class T, int kColumns, int kRows>
void launch_as(const Params& p, void* stream, int* blocks_a_processor) {
  const auto kernel = decode_any_kernel<T, kColumns, kRows>;
  constexpr int kShared = kWarps * kRows * (kColumns * 32 + 2) * 4;
  static_assert(kShared <= 48 * 1024);
  if (blocks_a_processor != nullptr) {
    WM_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_a_processor, kernel, kThreads, kShared));
    return;
  }
  const int row_blocks = (p.rows + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(p.parts * row_blocks), static_cast<unsigned>(p.num_kv_heads),
                  static_cast<unsigned>(p.batch));
  kernel<<<grid, kThreads, kShared, static_cast<cudaStream_t>(stream)>>>(p);
  check_launch();
}

template <class T>
void launch_of(const Params& p, void* stream, int* blocks_a_processor) {
  const bool one = any_shape_rows(p) == 1;
  if (p.head_dim <= 64) {
    one ? launch_as<T, 2, 1>(p, stream, blocks_a_processor) : launch_as<T, 2, 4>(p, stream, blocks_a_processor);
  } else if (p.head_dim <= 128) {
    one ? launch_as<T, 4, 1>(p, stream, blocks_a_processor) : launch_as<T, 4, 4>(p, stream, blocks_a_processor);
  } else {
    one ? launch_as<T, 8, 1>(p, stream, blocks_a_processor) : launch_as<T, 8, 4>(p, stream, blocks_a_processor);
  }
}

}  // namespace

int any_shape_rows(const Params& params) {
  return params.rows == 1 ? 1 : 4;
}

void launch_any_shape(const Params& p, void* stream, int* blocks_a_processor) {
  switch (p.cache_element) {
    case Element::fp32:
      return launch_of<float>(p, stream, blocks_a_processor);
    case Element::bf16:
      return launch_of<__nv_bfloat16>(p, stream, blocks_a_processor);
    case Element::fp16:
      return launch_of<__half>(p, stream, blocks_a_processor);
  }
}

}  // namespace warpmeter::attention::cuda_decode
