// softmax_one_read: the softmax of each row, read once: the notes' puzzle 8 with the row kept on the chip.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32
//   grid   a team of threads for each row: 32 (8 rows a block), 128, 512 or 1024 by the row's length. Each thread holds
//          up to eight pieces of 16 bytes in registers; what is longer than 128 KiB goes to shared memory, and only
//          what does not fit there either is read again
//   bound  memory: one read and one write
#include <algorithm>

#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/softmax.hpp"
#endif

namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has

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
template <class T, int kTeam, int kHeld>
__global__ void __launch_bounds__(kTeam == 32 ? 256 : kTeam, kTeam == 512 ? 2 : 1)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols, int in_shared) {
  extern __shared__ uint4 beyond[];  // pieces kHeld .. kHeld + in_shared - 1 of each thread
  const int teams = blockDim.x / kTeam, thread = threadIdx.x % kTeam;
  const std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam;
  if (row >= rows) return;
  constexpr std::int64_t kStep = kTeam * kPack<T>;  // from a thread's piece to its next
  const T* const from = x + row * cols + thread * kPack<T>;
  T* const to = y + row * cols + thread * kPack<T>;
  const std::int64_t left = cols - thread * kPack<T>;
  const int pieces = static_cast<int>((cols + kStep - 1) / kStep);
  const auto load = [&](int k) { return load_pack<T, Reuse::again>(from + k * kStep, left - k * kStep); };

  uint4 held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) held[k] = load(k);
#pragma unroll 4
  for (int k = kHeld; k < min(pieces, kHeld + in_shared); ++k) beyond[(k - kHeld) * kTeam + thread] = load(k);

  // Calls f(k) for each piece, with its numbers in `values`. A thread reads what it stored itself: no barrier.
  float values[kPack<T>];
  const auto for_each_piece = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      forget_unpacked(held[k]);
      unpack_scores<T>(held[k], left - k * kStep, values);
      f(k);
    }
    for (int k = kHeld; k < pieces; ++k) {
      const uint4 piece = k < kHeld + in_shared ? beyond[(k - kHeld) * kTeam + thread] : load(k);
      unpack_scores<T>(piece, left - k * kStep, values);
      f(k);
    }
  };

  float most = -INFINITY, sum = 0.0f;
  for_each_piece([&](int) {
#pragma unroll
    for (const float value : values) most = fmaxf(most, value);
  });
  most = team_reduce<kTeam>(most, Max());
  for_each_piece([&](int) {
#pragma unroll
    for (const float value : values) sum += ptx::exp2_approx((value - most) * kLog2e);
  });
  const float inverse = 1.0f / team_reduce<kTeam>(sum, Add());
  for_each_piece([&](int k) {
#pragma unroll
    for (float& value : values) value = ptx::exp2_approx((value - most) * kLog2e) * inverse;
    store_pack(to + k * kStep, left - k * kStep, values);
  });
}

template <class T, int kTeam, int kHeld>
void launch(const Problem& p, const Arguments& a, StreamView stream) {
  constexpr int kThreads = kTeam == 32 ? 256 : kTeam;
  constexpr int kPieceBytes = kTeam * 16;
  const std::int64_t more = std::max<std::int64_t>(0, ceil_div(p.cols, kTeam * kPack<T>) - kHeld);
  int limit = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  // A kilobyte stays for the reductions.
  const int in_shared = static_cast<int>(std::min<std::int64_t>(more, (limit - 1024) / kPieceBytes));
  WM_CUDA_CHECK(cudaFuncSetAttribute(kernel<T, kTeam, kHeld>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     in_shared * kPieceBytes));
  kernel<T, kTeam, kHeld>
      <<<grid_x(ceil_div(p.rows, kThreads / kTeam)), kThreads, in_shared * kPieceBytes, handle(stream)>>>(
          a.input<T>(0), a.output<T>(0), p.rows, p.cols, in_shared);
  check_launch();
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    if (pieces <= 32 * 2) return launch<T, 32, 2>(p, a, stream);
    if (pieces <= 32 * 8) return launch<T, 32, 8>(p, a, stream);
    if (pieces <= 128 * 8) return launch<T, 128, 8>(p, a, stream);
    if (pieces <= 512 * 8) return launch<T, 512, 8>(p, a, stream);
    launch<T, 1024, 8>(p, a, stream);
  });
}
#endif

}  // namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART
