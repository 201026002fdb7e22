// softmax_online: the softmax of each row in two passes, the notes' puzzle 8 with the online maximum.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32
//   passes 1: maximum m and sum s = sum_k exp(x_k - m) together: where a larger maximum comes, s is multiplied by
//          exp(m_old - m_new); 2: the results
//   grid   a team of threads for each row: a warp, 256 or 1024 threads by the row's length, and only so many blocks
//          that the rows under way stay in the caches. The second pass runs from the row's end to its beginning: what
//          was read last is what the cache still has
//   bound  memory: one read and one write where the second pass finds the row in the cache
#include <algorithm>

#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/softmax.hpp"
#endif

namespace warpmeter::primer::softmax_online::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  return softmax_kernel();
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const std::size_t bytes = 2 * p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    for_parts(p.rows, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        // Of each lane. Begins finite: -inf - -inf would be no number.
        Vec most = broadcast(-3e38f), sums{};
        std::int64_t i = 0;
        for (; i + 4 * kWidth <= p.cols; i += 4 * kWidth) {  // four vectors for each new maximum
          const Vec scores[4] = {load(x + i), load(x + i + kWidth), load(x + i + 2 * kWidth), load(x + i + 3 * kWidth)};
          const Vec larger = max(most, max(max(scores[0], scores[1]), max(scores[2], scores[3])));
          sums = sums * exp2_not_positive((most - larger) * kLog2e);
          for (const Vec& score : scores) sums = sums + exp2_not_positive((score - larger) * kLog2e);
          most = larger;
        }
        for (; i < p.cols; i += kWidth) {
          const IntVec there =
              lane_index() < broadcast_int(static_cast<int>(p.cols - i < kWidth ? p.cols - i : kWidth));
          const Vec scores = load_some(x + i, p.cols - i);
          const Vec larger = max(most, there ? scores : most);
          const Vec terms = exp2_not_positive((scores - larger) * kLog2e);
          sums = sums * exp2_not_positive((most - larger) * kLog2e) + (there ? terms : Vec{});
          most = larger;
        }
        const float m = reduce_max(most);
        const float inverse = 1.0f / reduce_add(sums * exp2_not_positive((most - m) * kLog2e));
        write_row(a.output<T>(0) + row * p.cols, p.cols, past_cache, [&](std::int64_t at, std::int64_t count) {
          return exp2_not_positive((load_some(x + at, count) - m) * kLog2e) * inverse;
        });
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kUnroll = 4;  // loads that a thread has under way

template <class T, int kTeam>
__global__ void __launch_bounds__(std::max(kTeam, 256)) kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const int teams = blockDim.x / kTeam, thread = threadIdx.x % kTeam;
  constexpr std::int64_t kTile = kTeam * kUnroll * kPack<T>;
  for (std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{teams}) {
    const T* const of_row = x + row * cols;
    uint4 raw[kUnroll];
    float values[kPack<T>];
    const auto load_tile = [&](std::int64_t tile) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = tile + (u * kTeam + thread) * kPack<T>;
        raw[u] = load_pack<T, Reuse::again>(of_row + col, cols - col);
      }
    };
    float most = -INFINITY, sum = 0.0f;
    for (std::int64_t tile = 0; tile < cols; tile += kTile) {
      load_tile(tile);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        unpack_scores<T>(raw[u], cols - tile - (u * kTeam + thread) * kPack<T>, values);
        float larger = most;
#pragma unroll
        for (const float value : values) larger = fmaxf(larger, value);
        if (larger == -INFINITY) continue;  // nothing yet that counts, and -inf - -inf is no number
        sum *= ptx::exp2_approx((most - larger) * kLog2e);
        most = larger;
#pragma unroll
        for (const float value : values) sum += ptx::exp2_approx((value - most) * kLog2e);
      }
    }
    const float m = team_reduce<kTeam>(most, Max());
    const float inverse = 1.0f / team_reduce<kTeam>(sum * ptx::exp2_approx((most - m) * kLog2e), Add());
    for (std::int64_t tile = (cols - 1) / kTile * kTile; tile >= 0; tile -= kTile) {
      load_tile(tile);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = tile + (u * kTeam + thread) * kPack<T>;
        unpack<T>(raw[u], values);
#pragma unroll
        for (float& value : values) value = ptx::exp2_approx((value - m) * kLog2e) * inverse;
        store_pack(y + row * cols + col, cols - col, values);
      }
    }
  }
}

/// As many blocks as `on_sm` a multiprocessor allow, with the same number of rounds for each.
template <class T, int kTeam>
void launch(const Problem& p, const Arguments& a, StreamView stream, std::int64_t on_sm) {
  constexpr int kThreads = std::max(kTeam, 256);
  const std::int64_t wanted = ceil_div(p.rows, kThreads / kTeam);
  const std::int64_t rounds = ceil_div(wanted, on_sm * multiprocessors(stream));
  kernel<T, kTeam><<<grid_x(ceil_div(wanted, rounds)), kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0),
                                                                                      p.rows, p.cols);
  check_launch();
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t row_kib = ceil_div(p.cols * static_cast<std::int64_t>(sizeof(T)), 1024);
    if (row_kib <= 4) {
      launch<T, 32>(p, a, stream, 6);
    } else if (row_kib <= 32) {
      launch<T, 256>(p, a, stream, std::min<std::int64_t>(8, 192 / row_kib));
    } else {
      launch<T, 1024>(p, a, stream, row_kib <= 128 ? 2 : 1);
    }
  });
}
#endif

}  // namespace warpmeter::primer::softmax_online::WM_PRIMER_PART
