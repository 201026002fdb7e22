// scalar_attention: attention of one head whose tokens are single numbers, the notes' puzzle 9.
//
//   q, y   (rows), k, v (cols), fp32, bf16 or fp16; computed in fp32
//   grid   a block of 128 threads for every eight queries; thread t takes the keys t, t + 128, ..., eight at a time
//   online each thread keeps for each query the maximum m so far, s = sum_j exp(q k_j - m) and o = sum_j exp(q k_j - m)
//          v_j, and multiplies s and o by exp(m_old - m_new) where m grows. Of eight products q k_j the largest is that
//          of the largest k_j or of the smallest. At the end the threads' states are merged the same way
//   bound  compute, but by the exponentials (16 a clock and multiprocessor), of which there is one for four FLOPs
#include <algorithm>
#include <cmath>

#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::scalar_attention::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e))

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "y[i] = sum_j p[i,j] * v[j], p[i,j] = exp(q[i] * k[j]) / sum_l exp(q[i] * k[l])";
  kernel.layout = "q, y (rows), k, v (cols)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 200, .cols = 200};
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"q", {p.rows}, p.dtype}, {"k", {p.cols}, p.dtype}, {"v", {p.cols}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"y", {p.rows}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return 4.0 * static_cast<double>(p.rows) * static_cast<double>(p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t i) {
    double most = -HUGE_VAL, sum = 0, weighted = 0;
    for (std::int64_t j = 0; j < p.cols; ++j) most = std::max(most, in[0][i] * in[1][j]);
    for (std::int64_t j = 0; j < p.cols; ++j) {
      const double term = std::exp(in[0][i] * in[1][j] - most);
      sum += term;
      weighted += term * in[2][j];
    }
    return weighted / sum;
  };
  kernel.reference_cost = [](const Problem& p) { return 8.0 * static_cast<double>(p.cols); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T *const k = a.input<T>(1), *const v = a.input<T>(2);
    for_parts(p.rows, 1, 16.0 * static_cast<double>(p.rows * p.cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const float q = to_float(a.input<T>(0)[i]) * kLog2e;
        Vec most = broadcast(q * to_float(k[0])), sums{}, weighted{};  // of each lane
        for (std::int64_t j = 0; j < p.cols; j += kWidth) {
          const std::int64_t count = p.cols - j < kWidth ? p.cols - j : std::int64_t{kWidth};
          const IntVec there = lane_index() < broadcast_int(static_cast<int>(count));
          const Vec scores = load_some(k + j, count) * q;
          const Vec larger = max(most, there ? scores : most);
          const Vec shrunk = exp2(most - larger);
          const Vec terms = there ? exp2(scores - larger) : Vec{};
          sums = fma(sums, shrunk, terms);
          weighted = fma(weighted, shrunk, terms * load_some(v + j, count));
          most = larger;
        }
        const Vec shrunk = exp2(most - reduce_max(most));
        a.output<T>(0)[i] = from_float<T>(reduce_add(weighted * shrunk) / reduce_add(sums * shrunk));
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 128;
constexpr int kQueries = 8;  // of a block
constexpr int kKeys = 8;     // of a thread at a time

template <class T>
__global__ void __launch_bounds__(kThreads)
    kernel(const T* q, const T* k, const T* v, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t first = blockIdx.x * std::int64_t{kQueries};
  float of_q[kQueries];
  OnlineState states[kQueries];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    of_q[i] = to_float(q[min(first + i, rows - 1)]) * kLog2e;
    states[i] = {-INFINITY, 0.0f, 0.0f};
  }

  for (std::int64_t j = threadIdx.x; j < cols; j += kThreads * kKeys) {
    float keys[kKeys], values[kKeys], counts[kKeys];  // beyond the end: the first key again, with a weight of 0
    float largest = -INFINITY, smallest = INFINITY;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const std::int64_t at = j + u * kThreads;
      keys[u] = to_float(k[at < cols ? at : j]);
      values[u] = at < cols ? to_float(v[at]) : 0.0f;
      counts[u] = at < cols ? 1.0f : 0.0f;
      largest = fmaxf(largest, keys[u]);
      smallest = fminf(smallest, keys[u]);
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      auto& [most, sum, weighted] = states[i];
      const float larger = fmaxf(most, fmaxf(of_q[i] * largest, of_q[i] * smallest));
      const float shrunk = ptx::exp2_approx(most - larger);
      states[i] = {larger, sum * shrunk, weighted * shrunk};
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const float term = ptx::exp2_approx(of_q[i] * keys[u] - larger);
        sum += term * counts[u];
        weighted += term * values[u];
      }
    }
  }

  __shared__ OnlineState of_warps[kThreads / 32][kQueries];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      states[i].merge({__shfl_xor_sync(kAllLanes, states[i].most, mask),
                       __shfl_xor_sync(kAllLanes, states[i].sum, mask),
                       __shfl_xor_sync(kAllLanes, states[i].weighted, mask)});
    }
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][i] = states[i];
  }
  __syncthreads();
  if (threadIdx.x >= kQueries || first + threadIdx.x >= rows) return;
  OnlineState state = of_warps[0][threadIdx.x];
  for (int warp = 1; warp < kThreads / 32; ++warp) state.merge(of_warps[warp][threadIdx.x]);
  y[first + threadIdx.x] = from_float<T>(state.weighted / state.sum);
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    kernel<T><<<grid_x(ceil_div(p.rows, kQueries)), kThreads, 0, handle(stream)>>>(
        a.input<T>(0), a.input<T>(1), a.input<T>(2), a.output<T>(0), p.rows, p.cols);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::scalar_attention::WM_PRIMER_PART
