// softmax_one_read: the softmax of each row, read once: the notes' puzzle 8 with the row kept on the chip.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32. Scores lie within 2e38 of 0
//   grid   a team of threads for each row, by its length: a warp (4 rows a block), a block of up to 512 threads, or a
//          cluster of up to eight blocks. A thread holds up to 32 numbers in registers, first the scores, then their
//          exponentials; of long rows in 16 bits 64 scores, packed, which are raised twice. What is beyond 131072
//          columns (16 bits: 262144) is read again
//   bound  memory: one read and one write
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/cpu_softmax_workspace.hpp"
#include "kernels/primer/detail/softmax.hpp"
#elif WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_softmax.hpp"
#elif WM_PRIMER_CUDA
#include "kernels/primer/cuda/cluster.cuh"
#endif

namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART {

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

/// A row has kTeam * kCluster threads, which hold kFloats numbers each, more than 32 packed; kBeyond: and is longer
/// than that.
template <class T, int kTeam, int kFloats, int kCluster, bool kBeyond, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam, kTeam == 32 ? 8 : 1024 / kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t team = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kTeam;
  const std::int64_t row = team / kCluster;
  if (row >= rows) return;
  constexpr int kPieces = kFloats / kPack<T>;
  constexpr std::int64_t kStep = kTeam * kPack<T>;  // from a thread's piece to its next
  const std::int64_t first = team % kCluster * kPieces * kStep + threadIdx.x % kTeam * kPack<T>;
  const T* const from = x + row * cols;
  T* const to = y + row * cols;

  constexpr bool kPacked = kFloats > 32;
  uint4 raw[kPieces];
  float held[kPacked ? 1 : kPieces][kPack<T>], most = kLeast, sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    raw[k] = load_pack<T, kWhole>(from + first + k * kStep, cols - first - k * kStep, -INFINITY);
  }
#pragma unroll
  for (int k = 0; k < kPieces; ++k) most = fmaxf(most, largest<T>(raw[k]));
  const float of_held = most *= kLog2e;
  const auto raise = [&](int k, float base) -> float(&)[kPack<T>] {  // scores to exponentials
    unpack<T>(raw[k], held[kPacked ? 0 : k]);
    for (float& value : held[kPacked ? 0 : k]) value = ptx::exp2_approx(value * kLog2e - base);
    return held[kPacked ? 0 : k];
  };
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    for (const float value : raise(k, most)) sum += value;
  }
  // Calls f(values, col) for each piece that registers have no room for.
  const auto for_each_beyond = [&](auto f) {
    const std::int64_t begin = kCluster * kPieces * kStep + team % kCluster * kStep + threadIdx.x % kTeam * kPack<T>;
    for (std::int64_t col = begin; kBeyond && col < cols; col += kCluster * kStep) {
      float values[kPack<T>];
      unpack<T>(load_pack<T, kWhole>(from + col, cols - col, -INFINITY), values);
      f(values, col);
    }
  };
  for_each_beyond([&](const auto& values, std::int64_t) {
    float larger = most;
    for (const float value : values) larger = fmaxf(larger, value * kLog2e);
    sum *= ptx::exp2_approx(most - larger);
    most = larger;
    for (const float value : values) sum += ptx::exp2_approx(value * kLog2e - most);
  });
  team_merge<kTeam>(most, sum);
  if constexpr (kCluster > 1) merge_cluster<kCluster>(most, sum);
  const float inverse = 1.0f / sum, factor = kPacked ? inverse : ptx::exp2_approx(of_held - most) * inverse;
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    float(&values)[kPack<T>] = kPacked ? raise(k, most) : held[kPacked ? 0 : k];
    for (float& value : values) value *= factor;
    store_pack<T, kWhole>(to + first + k * kStep, cols - first - k * kStep, values);
  }
  for_each_beyond([&](auto& values, std::int64_t col) {
    for (float& value : values) value = ptx::exp2_approx(value * kLog2e - most) * inverse;
    store_pack<T, kWhole>(to + col, cols - col, values);
  });
  if constexpr (kCluster > 1) leave_cluster();
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const auto launch = [&](auto team, auto floats, auto cluster, auto beyond) {
      constexpr int kTeam = team(), kCluster = cluster(), kThreads = kTeam == 32 ? 32 * kRowsOfWarps : kTeam;
      launch_clusters<kCluster, kThreads>(kernel<T, kTeam, floats(), kCluster, beyond(), whole()>,
                                          ceil_div(p.rows * kTeam, kThreads), stream, a.input<T>(0), a.output<T>(0),
                                          p.rows, p.cols);
    };
    constexpr std::false_type kFits;
    if (p.cols <= 32 * 8) return launch(Int<32>(), Int<8>(), Int<1>(), kFits);
    if (p.cols <= 32 * 16) return launch(Int<32>(), Int<16>(), Int<1>(), kFits);
    if (p.cols <= 32 * 32) return launch(Int<32>(), Int<32>(), Int<1>(), kFits);
    if (p.cols <= 64 * 32) return launch(Int<64>(), Int<32>(), Int<1>(), kFits);
    if (p.cols <= 128 * 32) return launch(Int<128>(), Int<32>(), Int<1>(), kFits);
    if (p.cols <= 256 * 32) return launch(Int<256>(), Int<32>(), Int<1>(), kFits);
    if (p.cols <= 512 * 32) return launch(Int<512>(), Int<32>(), Int<1>(), kFits);
    constexpr Int<sizeof(T) == 2 ? 64 : 32> kLong;
    if (p.cols <= 512 * kLong) return launch(Int<512>(), kLong, Int<1>(), kFits);
    if (!has_clusters(stream)) return launch(Int<512>(), kLong, Int<1>(), std::true_type());
    if (p.cols <= 2 * 512 * kLong) return launch(Int<512>(), kLong, Int<2>(), kFits);
    if (p.cols <= 4 * 512 * kLong) return launch(Int<512>(), kLong, Int<4>(), kFits);
    launch(Int<512>(), kLong, Int<8>(), std::true_type());
  });
}
#endif

}  // namespace warpmeter::primer::softmax_one_read::WM_PRIMER_PART
