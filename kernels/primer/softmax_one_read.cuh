// softmax_one_read: the softmax of each row, read once: the notes' puzzle 8 with the row kept on the chip.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32
//   grid   a team of threads for each row, by its length: a warp (4 rows a block), a block of up to 512 threads, or a
//          cluster of up to eight blocks. A thread holds up to eight pieces of 16 bytes in registers, a block 64 KiB.
//          What is beyond 512 KiB is read again
//   bound  memory: one read and one write
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/softmax.hpp"
#elif WM_PRIMER_CUDA
#include "kernels/primer/cuda/cluster.cuh"
#endif

namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has
constexpr float kLeast = -3e38f;       // below every score, and finite: -inf - -inf would be no number

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel = softmax_kernel();
  kernel.workspace_bytes = [](const Problem& p, Device d) { return cpu_floats(d, num_threads() * (p.cols + 16)); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const bool past_cache = cpu_tools::exceeds_cache(2 * p.rows * p.cols * sizeof(T));
    parallel_workers([&](int worker, int workers) {
      float* const kept = static_cast<float*>(a.workspace) + worker * (p.cols + 16);  // the row's exponentials
      for (std::int64_t row = p.rows * worker / workers; row < p.rows * (worker + 1) / workers; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        Vec maxima = broadcast(to_float(x[0]));
        for (std::int64_t i = 0; i < p.cols; i += kWidth) {
          const Vec scores = load_some(x + i, p.cols - i);
          const IntVec there =
              lane_index() < broadcast_int(static_cast<int>(p.cols - i < kWidth ? p.cols - i : kWidth));
          maxima = max(maxima, there ? scores : maxima);
          p.cols - i < kWidth ? store_partial(kept + i, scores, p.cols - i) : store(kept + i, scores);
        }
        const float most = reduce_max(maxima);
        const float inverse = 1.0f / sum_row(p.cols, [&](std::int64_t i, std::int64_t count) {
                                const Vec term = exp2_not_positive((load_some(kept + i, count) - most) * kLog2e);
                                count < kWidth ? store_partial(kept + i, term, count) : store(kept + i, term);
                                return lane_index() < broadcast_int(static_cast<int>(count)) ? term : Vec{};
                              });
        write_row(a.output<T>(0) + row * p.cols, p.cols, past_cache,
                  [&](std::int64_t i, std::int64_t count) { return load_some(kept + i, count) * inverse; });
      }
      finish_writes();
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

/// `kHeld` pieces of each thread stay in registers; a row has kTeam * kCluster threads.
template <class T, int kTeam, int kHeld, int kCluster, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam, kTeam == 32 ? 8 : 1024 / kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t team = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kTeam;
  const std::int64_t row = team / kCluster;
  if (row >= rows) return;
  const int rank = static_cast<int>(team % kCluster), thread = threadIdx.x % kTeam;
  constexpr std::int64_t kStep = kTeam * kPack<T>;  // from a thread's piece to its next
  constexpr std::int64_t kRowHeld = kCluster * kHeld * kStep;
  const T* const from = x + row * cols;
  T* const to = y + row * cols;
  const std::int64_t first = rank * kHeld * kStep + thread * kPack<T>;

  uint4 held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const std::int64_t col = first + k * kStep;
    held[k] = load_pack<T, Reuse::once, kWhole>(from + col, cols - col, -INFINITY);
  }
  float values[kPack<T>];  // of the piece that for_each_piece is at
  const auto for_each_piece = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      forget_unpacked(held[k]);
      unpack<T>(held[k], values);
      f(first + k * kStep);
    }
    if constexpr (kHeld == 8) {  // other shapes are for rows that fit
      for (std::int64_t col = kRowHeld + rank * kStep + thread * kPack<T>; col < cols; col += kCluster * kStep) {
        unpack<T>(load_pack<T, Reuse::again, kWhole>(from + col, cols - col, -INFINITY), values);
        f(col);
      }
    }
  };

  float most = kLeast, sum = 0.0f;
  for_each_piece([&](std::int64_t) {
#pragma unroll
    for (const float value : values) most = fmaxf(most, value);
  });
  most = team_reduce<kTeam>(most, Max());
  for_each_piece([&](std::int64_t) {
#pragma unroll
    for (const float value : values) sum += ptx::exp2_approx((value - most) * kLog2e);
  });
  sum = team_reduce<kTeam>(sum, Add());
  if constexpr (kCluster > 1) merge_cluster<kCluster>(most, sum, kLog2e);
  const float inverse = 1.0f / sum;
  for_each_piece([&](std::int64_t col) {
#pragma unroll
    for (float& value : values) value = ptx::exp2_approx((value - most) * kLog2e) * inverse;
    store_pack<T, kWhole>(to + col, cols - col, values);
  });
  if constexpr (kCluster > 1) leave_cluster();
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const auto launch = [&](auto team, auto held, auto cluster) {
      constexpr int kTeam = team(), kCluster = cluster(), kThreads = kTeam == 32 ? 32 * kRowsOfWarps : kTeam;
      const auto of_shape = kernel<T, kTeam, held(), kCluster, whole()>;
      if constexpr (kCluster > 1) {
        return launch_clusters<kCluster, kThreads>(of_shape, p.rows, stream, a.input<T>(0), a.output<T>(0), p.rows,
                                                   p.cols);
      }
      const unsigned blocks = grid_x(ceil_div(p.rows * kTeam, kThreads));
      of_shape<<<blocks, kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0), p.rows, p.cols);
      check_launch();
    };
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    if (pieces <= 32 * 2) return launch(Int<32>(), Int<2>(), Int<1>());
    if (pieces <= 128 * 1) return launch(Int<128>(), Int<1>(), Int<1>());
    if (pieces <= 128 * 2) return launch(Int<128>(), Int<2>(), Int<1>());
    if (pieces <= 128 * 4) return launch(Int<128>(), Int<4>(), Int<1>());
    if (pieces <= 256 * 4) return launch(Int<256>(), Int<4>(), Int<1>());
    if (pieces <= 512 * 4) return launch(Int<512>(), Int<4>(), Int<1>());
    if (pieces <= 512 * 8 || !has_clusters(stream)) return launch(Int<512>(), Int<8>(), Int<1>());
    if (pieces <= 2 * 512 * 8) return launch(Int<512>(), Int<8>(), Int<2>());
    if (pieces <= 4 * 512 * 8) return launch(Int<512>(), Int<8>(), Int<4>());
    launch(Int<512>(), Int<8>(), Int<8>());
  });
}
#endif

}  // namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART
