// Embedding. Forward: a copy of rows. Backward: rows are sorted by token first, those of one token in their own order
// (a counting sort whose ranks are counted, not drawn from counters), then every row of the table gathers its sum.
//
// A token outside of the vocabulary has no row: forward gives NaN, backward leaves it out.
//
// Workspace, in int32: first[vocab + 1], rank[rows], order[rows].
#include <limits>

#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 8;  // rows that a warp ranks at once: each token it reads is compared with all of them
constexpr int kSortThreads = 1024;

template <class Vector, class Element>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const std::int32_t* tokens, const Vector* table, Vector* out, std::int64_t rows,
                   std::int64_t vectors, std::int64_t vocab, Element nan) {
  constexpr int kCount = static_cast<int>(sizeof(Vector) / sizeof(Element));
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = index / vectors;
  if (row >= rows) return;
  const std::int64_t token = tokens[row];
  if (token >= 0 && token < vocab) {
    out[index] = table[token * vectors + (index - row * vectors)];
  } else {
    for (int i = 0; i < kCount; ++i) reinterpret_cast<Element*>(out + index)[i] = nan;
  }
}

/// rank[r] = the number of rows before r with its token; first[t + 1] += the number of rows with token t.
__global__ void __launch_bounds__(kThreads) rank_kernel(const std::int32_t* tokens, std::int32_t rows,
                                                        std::int32_t vocab, std::int32_t* first, std::int32_t* rank) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp * kGroup;
  if (group >= rows) return;
  std::int32_t mine[kGroup], before[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    mine[i] = group + i < rows ? tokens[group + i] : -1;
    before[i] = 0;
  }
#pragma unroll 4
  for (std::int64_t row = lane; row < group; row += kWarp) {
    const std::int32_t token = tokens[row];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) before[i] += token == mine[i] ? 1 : 0;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    std::int32_t total = warp_reduce(before[i]);
#pragma unroll
    for (int j = 0; j < i; ++j) total += mine[j] == mine[i] ? 1 : 0;
    if (lane != i || group + i >= rows) continue;
    rank[group + i] = total;
    // Counts are whole numbers: their order of arrival changes nothing.
    if (mine[i] >= 0 && mine[i] < vocab) atomicAdd(first + mine[i] + 1, 1);
  }
}

/// One block: counts to first places, then rows to their places in `order`.
__global__ void __launch_bounds__(kSortThreads)
    order_kernel(const std::int32_t* tokens, std::int32_t rows, std::int32_t vocab, std::int32_t* first,
                 const std::int32_t* rank, std::int32_t* order) {
  __shared__ std::int32_t totals[kWarp];
  follow_previous();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  std::int32_t done = 0;  // the sum of what lies before this stretch
  for (std::int64_t begin = 1; begin <= vocab; begin += kSortThreads) {
    const std::int64_t at = begin + thread;
    std::int32_t sum = at <= vocab ? first[at] : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const std::int32_t below = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += below;
    }
    __syncthreads();  // every warp has read the last stretch's totals
    if (lane == kWarp - 1) totals[warp] = sum;
    __syncthreads();  // `totals` is visible to all warps
    const std::int32_t total = totals[lane];
    sum += done + warp_reduce(lane < warp ? total : 0);
    done += warp_reduce(total);
    if (at <= vocab) first[at] = sum;
  }
  __syncthreads();  // `first` is complete
  for (std::int64_t row = thread; row < rows; row += kSortThreads) {
    const std::int32_t token = tokens[row];
    if (token >= 0 && token < vocab) order[first[token] + rank[row]] = static_cast<std::int32_t>(row);
  }
}

template <int kCount, class T, class G>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(EmbeddingBackward a, const std::int32_t* first, const std::int32_t* order) {
  const std::int64_t vectors = a.width / kCount;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t token = index / vectors;
  if (token >= a.vocab) return;
  const std::int32_t begin = first[token], end = first[token + 1];
  if (a.accumulate && begin == end) return;
  G* place = static_cast<G*>(a.d_table) + index * kCount;
  const T* from = static_cast<const T*>(a.d_out) + (index - token * vectors) * kCount;
  float sum[kCount] = {};
  if (a.accumulate) load(place, sum);
#pragma unroll 4
  for (std::int32_t i = begin; i < end; ++i) {
    float x[kCount];
    load(from + order[i] * a.width, x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] += x[j];
  }
  store(place, sum);
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  const auto run = [&](auto vector, auto nan) {
    using Vector = decltype(vector);
    const std::int64_t vectors = a.width * static_cast<std::int64_t>(size_of(a.dtype)) / sizeof(Vector);
    const std::int64_t blocks = divide_up(a.rows * vectors, kThreads);
    WM_CHECK(blocks <= kMaxGrid, "too many elements for one grid");
    forward_kernel<<<grid_of(blocks), kThreads, 0, stream_of(context)>>>(
        a.tokens, static_cast<const Vector*>(a.table), static_cast<Vector*>(a.out), a.rows, vectors, a.vocab, nan);
  };
  // Copies do not care what they carry: types of one size share a kernel.
  const bool whole = aligned(a.table, a.out) && a.width * static_cast<std::int64_t>(size_of(a.dtype)) % 16 == 0;
  const std::uint16_t nan16 = a.dtype == DType::bf16 ? 0x7fc0 : 0x7e00;
  const std::uint32_t nan32 = 0x7fc00000;
  if (size_of(a.dtype) == 4) {
    whole ? run(uint4{}, nan32) : run(std::uint32_t{}, nan32);
  } else {
    whole ? run(uint4{}, nan16) : run(std::uint16_t{}, nan16);
  }
  check_launch();
}

std::size_t workspace_bytes(const EmbeddingBackward& a) {
  return static_cast<std::size_t>(a.vocab + 1 + 2 * a.rows) * sizeof(std::int32_t);
}

void embedding_backward(const Context& context, const EmbeddingBackward& a) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 1;
  WM_CHECK(a.rows <= kMost && a.vocab <= kMost, "rows and tokens are counted in 32 bits");
  const DeviceGuard guard(context.device());
  const auto rows = static_cast<std::int32_t>(a.rows), vocab = static_cast<std::int32_t>(a.vocab);
  auto* first = static_cast<std::int32_t*>(a.workspace);
  std::int32_t *rank = first + a.vocab + 1, *order = rank + a.rows;
  WM_CUDA_CHECK(cudaMemsetAsync(first, 0, static_cast<std::size_t>(a.vocab + 1) * sizeof(*first), stream_of(context)));
  if (rows > 0) {
    rank_kernel<<<grid_of(divide_up(divide_up(a.rows, kGroup) * kWarp, kThreads)), kThreads, 0, stream_of(context)>>>(
        a.tokens, rows, vocab, first, rank);
    check_launch();
    launch(context, order_kernel, 1, kSortThreads, 0, a.tokens, rows, vocab, first, rank, order);
    check_launch();
  }
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto lanes, auto gradient) {
      constexpr int kCount = decltype(lanes)::value;
      const std::int64_t blocks = divide_up(a.vocab * (a.width / kCount), kThreads);
      WM_CHECK(blocks <= kMaxGrid, "too many elements for one grid");
      gather_kernel<kCount, T, decltype(gradient)>
          <<<grid_of(blocks), kThreads, 0, stream_of(context)>>>(a, first, order);
    };
    const auto with = [&](auto gradient) {
      constexpr int kVector = std::min(kLanes<T>, kLanes<decltype(gradient)>);  // neighbours side by side on both sides
      if (aligned(a.d_out, a.d_table) && a.width % kVector == 0) {
        run(std::integral_constant<int, kVector>{}, gradient);
      } else {
        run(std::integral_constant<int, 1>{}, gradient);
      }
    };
    if (a.gradient_dtype == DType::fp32) {
      with(float{});
    } else {
      with(T{});
    }
  });
  check_launch();
}

}  // namespace warpmeter::layers::cuda
