#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/cuda/flash_sm90/forward.cuh"
#include "kernels/attention/cuda/flash_sm90/kernels.hpp"
#include "kernels/ptx/tensor_map.hpp"

namespace warpmeter::attention::flash_sm90 {

template <class T, class Config>
void launch_forward(const ForwardArguments& arguments, cudaStream_t stream) {
  const Shape& shape = arguments.shape;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  typename Config::Params params;
  const auto map_of = [](const auto& view, auto... sizes) {
    const ptx::MapOperand operand{view.data, view.batch_stride, view.head_stride, view.row_stride};
    return ptx::make_tensor_map(operand, sizes...);
  };
  const bool own_queries = shape.batch == 1 || arguments.q.batch_stride != 0;
  params.q =
      map_of(arguments.q, kBf16, own_queries ? shape.batch : 1, shape.num_heads, shape.seq_len, shape.head_dim, 64);
  params.query_batches = own_queries ? 1 : 0;
  std::int64_t key_batches = shape.batch, key_rows = shape.kv_len;
  int box_rows = Config::kBlockN;
  if constexpr (Config::kPaged) {
    const Pages& pages = arguments.pages;
    key_batches = pages.count;
    key_rows = pages.page_size;
    box_rows = std::min(box_rows, static_cast<int>(pages.page_size));
    params.pages = pages.table;
    params.pages_stride = pages.table_stride;
    params.page_shift = std::countr_zero(static_cast<std::uint64_t>(pages.page_size));
    params.boxes = Config::kBlockN / box_rows;
    params.box_bytes = box_rows * 128;
  }
  params.k = map_of(arguments.k, kBf16, key_batches, shape.num_kv_heads, key_rows, shape.head_dim, box_rows);
  params.v = map_of(arguments.v, kBf16, key_batches, shape.num_kv_heads, key_rows, shape.head_dim, box_rows);
  params.o = arguments.o;
  if constexpr (Config::kStagedOutput) {
    params.o_map = map_of(params.o, kBf16, shape.batch, shape.num_heads, shape.seq_len, shape.head_dim, 16);
  }
  params.lse = arguments.lse;
  params.work_counter = arguments.work_counter;
  params.scale = shape.scale;
  params.scale_log2 = shape.scale_log2;
  params.seq_len = static_cast<int>(shape.seq_len);
  params.kv_len = static_cast<int>(shape.kv_len);
  params.head_dim = shape.head_dim;
  params.num_heads = static_cast<int>(shape.num_heads);
  params.group_size = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  params.tiles = static_cast<int>((shape.seq_len + Config::kBlockM - 1) / Config::kBlockM);
  params.heads = static_cast<int>(shape.batch * shape.num_heads);
  params.items = params.heads * params.tiles;
  params.row_shift = (params.tiles * Config::kBlockM - params.seq_len) / 64 * 64;
  constexpr int kLastRounds = 2;  // of items a block
  params.mixed_heads =
      std::max(0, params.heads - (kLastRounds * arguments.multiprocessors + params.tiles - 1) / params.tiles);

  const auto kernel = [] {
    if constexpr (Config::kPaged) {
      return paged_forward_kernel<T, Config>;
    } else {
      return forward_kernel<T, Config>;
    }
  }();
  flash_sm80::check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes),
                         "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  const int blocks = std::min(params.items, arguments.multiprocessors);
  kernel<<<static_cast<unsigned>(blocks), Config::kThreads, Config::kSharedBytes, stream>>>(params);
  flash_sm80::check_cuda(cudaGetLastError(), "kernel launch");
}

}  // namespace warpmeter::attention::flash_sm90
