// softmax_online: the softmax of each row in two passes, the notes' puzzle 8 with the online maximum.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32. Scores lie within 2e38 of 0
//   passes 1: maximum m and sum s = sum_k exp(x_k - m) together: where a larger maximum comes, s is multiplied by
//          exp(m_old - m_new); 2: the results
//   grid   a team of threads for each row, by its length: a warp (4 rows a block) or a block of up to 1024 threads. The
//          second pass runs from the row's end to its beginning: the exponentials of its last tile are still in
//          registers, what was read before that may be in the cache. On the CPU all exponentials are kept, as in
//          softmax_one_read, and the second pass runs with the next row's first
//   bound  memory: one read and one write where the second pass finds the row in the cache
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/cpu_softmax_workspace.hpp"
#include "kernels/primer/detail/softmax.hpp"
#elif WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_softmax.hpp"
#endif

namespace warpmeter::primer::softmax_online::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has
constexpr float kLeast = -2e38f;       // below every score, and finite: -inf - -inf would be no number

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel = softmax_kernel();
  kernel.workspace_bytes = [](const Problem& p, Device d) {
    return cpu_floats(d, num_threads() * cpu_tools::kept_floats(p.cols));
  };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const std::size_t bytes = 2 * p.rows * p.cols * sizeof(T);
    for_parts(p.rows, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end, int worker) {
      float* const kept = static_cast<float*>(a.workspace) + worker * cpu_tools::kept_floats(p.cols);
      softmax_rows(a.input<T>(0), a.output<T>(0), begin, end, p.cols, kLeast, kept, cpu_tools::exceeds_cache(bytes));
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

/// A tile is kFloats numbers of each thread. kOneTile: a row fits in it.
template <class T, int kTeam, int kFloats, bool kOneTile, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam, kTeam == 32 ? 8 : 1024 / kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kTeam;
  if (row >= rows) return;
  constexpr int kPieces = kFloats / kPack<T>;
  constexpr std::int64_t kStep = kTeam * kPack<T>, kTile = kPieces * kStep;
  const std::int64_t begin = threadIdx.x % kTeam * kPack<T>;
  const std::int64_t last = kOneTile ? begin : (cols - 1) / kTile * kTile + begin;
  const T* const from = x + row * cols;
  T* const to = y + row * cols;
  float tile[kPieces][kPack<T>], most = kLeast, sum = 0.0f;
  const auto load_tile = [&](std::int64_t first) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const std::int64_t col = first + k * kStep;
      unpack<T>(load_pack<T, kWhole>(from + col, cols - col, -INFINITY), tile[k]);
    }
  };
  const auto raise_tile = [&] {  // scores to exponentials
#pragma unroll
    for (int i = 0; i < kFloats; ++i) {
      float& value = tile[i / kPack<T>][i % kPack<T>];
      value = ptx::exp2_approx(value * kLog2e - most);
    }
  };
  for (std::int64_t first = begin; first <= last; first += kTile) {
    load_tile(first);
    float larger = -INFINITY;
#pragma unroll
    for (int i = 0; i < kFloats; ++i) larger = fmaxf(larger, tile[i / kPack<T>][i % kPack<T>]);
    larger = fmaxf(most, larger * kLog2e);
    sum *= ptx::exp2_approx(most - larger);
    most = larger;
    raise_tile();
#pragma unroll
    for (int i = 0; i < kFloats; ++i) sum += tile[i / kPack<T>][i % kPack<T>];
  }
  const float of_tile = most;
  team_merge<kTeam>(most, sum);
  const float inverse = 1.0f / sum;
  float factor = ptx::exp2_approx(of_tile - most) * inverse;  // of the last tile
  for (std::int64_t first = last; first >= 0; first = kOneTile ? -1 : first - kTile) {
    if (first < last) {
      load_tile(first);
      raise_tile();
      factor = inverse;
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const std::int64_t col = first + k * kStep;
#pragma unroll
      for (float& value : tile[k]) value *= factor;
      store_pack<T, kWhole>(to + col, cols - col, tile[k]);
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const auto launch = [&](auto team, auto floats, auto one_tile) {
      constexpr int kTeam = team(), kThreads = kTeam == 32 ? 32 * kRowsOfWarps : kTeam;
      kernel<T, kTeam, floats(), one_tile() == 1, whole()>
          <<<grid_x(ceil_div(p.rows * kTeam, kThreads)), kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0),
                                                                                        p.rows, p.cols);
      check_launch();
    };
    if (p.cols <= 32 * 8) return launch(Int<32>(), Int<8>(), Int<1>());
    if (p.cols <= 32 * 16) return launch(Int<32>(), Int<16>(), Int<1>());
    if (p.cols <= 32 * 32) return launch(Int<32>(), Int<32>(), Int<1>());
    if (p.cols <= 64 * 32) return launch(Int<64>(), Int<32>(), Int<1>());
    if (p.cols <= 128 * 32) return launch(Int<128>(), Int<32>(), Int<1>());
    if (p.cols <= 256 * 32) return launch(Int<256>(), Int<32>(), Int<1>());
    if (p.cols <= 512 * 32) return launch(Int<512>(), Int<32>(), Int<1>());
    if (sizeof(T) == 2) return launch(Int<512>(), Int<32>(), Int<0>());
    launch(Int<1024>(), Int<16>(), Int<0>());
  });
}
#endif

}  // namespace warpmeter::primer::softmax_online::WM_PRIMER_PART
