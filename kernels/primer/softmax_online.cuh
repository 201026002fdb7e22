// softmax_online: the softmax of each row in two passes, the notes' puzzle 8 with the online maximum.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32
//   passes 1: maximum m and sum s = sum_k exp(x_k - m) together: where a larger maximum comes, s is multiplied by
//          exp(m_old - m_new); 2: the results
//   grid   a team of threads for each row: a warp (4 rows a block) or a block of up to 1024 threads, by the row's
//   length,
//          and for long rows only so many blocks that the rows under way stay in the caches. The second pass runs from
//          the row's end to its beginning: its last tile is still in registers, what was read before that in the cache
//   bound  memory: one read and one write where the second pass finds the row in the cache
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/softmax.hpp"
#endif

namespace warpmeter::primer::softmax_online::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has
constexpr float kLeast = -3e38f;       // below every score, and finite: -inf - -inf would be no number

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
        Vec most = broadcast(kLeast), sums{};  // of each lane
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
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

/// A tile is kUnroll pieces of each thread.
template <class T, int kTeam, int kUnroll, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam, kTeam == 32 ? 8 : 1024 / kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const int teams = blockDim.x / kTeam, thread = threadIdx.x % kTeam;
  constexpr std::int64_t kStep = kTeam * kPack<T>, kTile = kUnroll * kStep;
  const std::int64_t last = (cols - 1) / kTile * kTile + thread * kPack<T>;
  for (std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{teams}) {
    const T* const of_row = x + row * cols;
    uint4 tile[kUnroll];
    float values[kPack<T>];
    const auto load_tile = [&](std::int64_t first) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = first + u * kStep;
        tile[u] = load_pack<T, Reuse::again, kWhole>(of_row + col, cols - col, -INFINITY);
      }
    };
    float most = kLeast, sum = 0.0f;
    for (std::int64_t first = thread * kPack<T>; first <= last; first += kTile) {
      load_tile(first);
      float larger = most;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        unpack<T>(tile[u], values);
#pragma unroll
        for (const float value : values) larger = fmaxf(larger, value);
      }
      sum *= ptx::exp2_approx((most - larger) * kLog2e);
      most = larger;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        forget_unpacked(tile[u]);
        unpack<T>(tile[u], values);
#pragma unroll
        for (const float value : values) sum += ptx::exp2_approx((value - most) * kLog2e);
      }
    }
    const float m = team_reduce<kTeam>(most, Max());
    const float inverse = 1.0f / team_reduce<kTeam>(sum * ptx::exp2_approx((most - m) * kLog2e), Add());
    for (std::int64_t first = last; first >= 0; first -= kTile) {
      if (first < last) load_tile(first);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = first + u * kStep;
        forget_unpacked(tile[u]);
        unpack<T>(tile[u], values);
#pragma unroll
        for (float& value : values) value = ptx::exp2_approx((value - m) * kLog2e) * inverse;
        store_pack<T, kWhole>(y + row * cols + col, cols - col, values);
      }
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    // At most `on_sm` blocks a multiprocessor, with the same number of rounds for each; 0: a block for each row.
    const auto launch = [&](auto team, auto unroll, std::int64_t on_sm) {
      constexpr int kTeam = team(), kThreads = kTeam == 32 ? 32 * kRowsOfWarps : kTeam;
      const std::int64_t wanted = ceil_div(p.rows * kTeam, kThreads);
      const std::int64_t rounds = on_sm == 0 ? 1 : ceil_div(wanted, on_sm * multiprocessors(stream));
      kernel<T, kTeam, unroll(), whole()><<<grid_x(ceil_div(wanted, rounds)), kThreads, 0, handle(stream)>>>(
          a.input<T>(0), a.output<T>(0), p.rows, p.cols);
      check_launch();
    };
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    if (pieces <= 32 * 2) return launch(Int<32>(), Int<2>(), 0);
    if (pieces <= 128 * 1) return launch(Int<128>(), Int<1>(), 0);
    if (pieces <= 128 * 2) return launch(Int<128>(), Int<2>(), 0);
    if (pieces <= 128 * 4) return launch(Int<128>(), Int<4>(), 0);
    if (pieces <= 256 * 4) return launch(Int<256>(), Int<4>(), 0);
    if (pieces <= 512 * 4) return launch(Int<512>(), Int<4>(), 0);
    if (pieces <= 512 * 8) return launch(Int<512>(), Int<8>(), 0);
    launch(Int<1024>(), Int<4>(), pieces <= 1024 * 8 ? 2 : 1);
  });
}
#endif

}  // namespace warpmeter::primer::softmax_online::WM_PRIMER_PART
