// gemm_sm90_bench: the PTX layer as a plain matrix product beside cuBLAS, first for truth, then for speed; bf16.
//
//     gemm_sm90_bench [--check] [--cluster 1|2] [--rows N] [--samples N]
//
// One JSON line a figure on stdout. Every product is compared with cuBLAS's of the same operands in fp32, and in places
// with one in fp64; a wrong one is not timed, and the exit status is 1. Times are medians of device time between
// events, the two taking turns, with the L2 flushed before each sample. --check: odd shapes too, and the same bits
// again. --cluster 2: pairs of blocks load B together. --rows: how many
// tiles of a column come one after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/dev/bench_data.cuh"
#include "kernels/attention/dev/gemm_sm90_bench/gemm.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::gemm_sm90 {
namespace {

using dev::fill_normal_kernel, dev::hash;
using flash_sm80::check_cuda;
using T = __nv_bfloat16;

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string(what) + ": " + cublasGetStatusString(status), false);
}

template <class U>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t count) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, static_cast<std::size_t>(count) * sizeof(U)), "cudaMalloc");
    data_ = static_cast<U*>(data);
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  [[nodiscard]] U* get() const { return data_; }

 private:
  U* data_ = nullptr;
};

/// Bits of the largest |got - expected| and |expected|, in whose order NaNs come last, and how many of `got` are off by
/// more than a rounding to bf16 and a 2^-14 of the root-mean-square element, sqrt(k), for how sums are accumulated.
struct Difference {
  unsigned error_bits, largest_bits;
  unsigned long long wrong;
};

__device__ bool is_wrong(float got, double expected, std::int64_t k) {
  const double allowed = 0x1p-8 * fabs(expected) + 0x1p-14 * sqrt(static_cast<double>(k));
  return !(fabs(got - expected) <= allowed);
}

__global__ void compare_kernel(const T* got, const float* expected, std::int64_t count, std::int64_t k,
                               Difference* difference) {
  float error = 0, largest = 0;
  unsigned long long wrong = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float value = static_cast<float>(got[i]);
    const float off = fabsf(value - expected[i]);
    if (off > error || isnan(off)) error = off;  // takes a NaN, and keeps it
    largest = fmaxf(largest, fabsf(expected[i]));
    wrong += is_wrong(value, expected[i], k) ? 1 : 0;
  }
  atomicMax(&difference->error_bits, __float_as_uint(error) & 0x7fffffffu);
  atomicMax(&difference->largest_bits, __float_as_uint(largest));
  if (wrong != 0) atomicAdd(&difference->wrong, wrong);
}

/// One place of C a block, from the operands in fp64.
__global__ void spot_check_kernel(Gemm gemm, Layout layout, Difference* difference) {
  __shared__ double sums[128];
  const std::int64_t row = hash(2 * blockIdx.x) % gemm.m, column = hash(2 * blockIdx.x + 1) % gemm.n;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < gemm.k; i += blockDim.x) {
    const T b = layout == Layout::k_major ? gemm.b[column * gemm.k + i] : gemm.b[i * gemm.n + column];
    sum += static_cast<double>(static_cast<float>(gemm.a[row * gemm.k + i])) * static_cast<float>(b);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int i = 0; i < 128; ++i) sum += sums[i];
  const float value = static_cast<float>(gemm.c[row * gemm.n + column]);
  if (is_wrong(value, sum, gemm.k)) atomicAdd(&difference->wrong, 1ULL);
}

using Launch = void (*)(const Gemm&, int, cudaStream_t);

struct Variant {
  Layout layout;
  int cluster;
  int rows_together;
  [[nodiscard]] Launch launch_function() const {
    if (layout == Layout::k_major) return cluster == 1 ? launch<Layout::k_major, 1> : launch<Layout::k_major, 2>;
    return cluster == 1 ? launch<Layout::mn_major, 1> : launch<Layout::mn_major, 2>;
  }
};

class Bench {
 public:
  explicit Bench(int samples) : samples_(samples), flush_(kFlushBytes) {
    check_cublas(cublasCreate(&cublas_), "cublasCreate");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Bench() {
    (void)cublasDestroy(cublas_);
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Whether the product is right, and prints it; times it where asked.
  bool run(const Variant& variant, std::int64_t m, std::int64_t n, std::int64_t k, bool timed) {
    const DeviceArray<T> a(m * k), b(n * k), c(m * n + kGuard), cublas_c(m * n);
    fill_normal_kernel<<<1024, 256>>>(a.get(), m * k, 1);
    fill_normal_kernel<<<1024, 256>>>(b.get(), n * k, 2);
    const Gemm gemm{m, n, k, a.get(), b.get(), c.get(), variant.rows_together};
    const auto ours = [&] { variant.launch_function()(gemm, multiprocessors_, nullptr); };

    check_cuda(cudaMemset(c.get(), 0xff, (m * n + kGuard) * sizeof(T)), "poison");
    ours();
    check_cuda(cudaDeviceSynchronize(), "gemm_sm90");
    const Difference difference = compare(gemm, variant.layout);
    const bool outside = !untouched(c.get() + m * n);
    const bool same = timed || repeats(gemm, ours);
    const bool right = difference.wrong == 0 && !outside && same;

    double ours_ms = 0, cublas_ms = 0;
    if (timed && right) {
      const auto theirs = [&] { multiply(gemm, variant.layout, cublas_c.get(), CUDA_R_16BF); };
      std::tie(ours_ms, cublas_ms) = time(ours, theirs);
    }
    print(variant, gemm, difference, right, ours_ms, cublas_ms);
    if (outside) std::fprintf(stderr, "gemm_sm90_bench: wrote behind the end of C\n");
    if (!same) std::fprintf(stderr, "gemm_sm90_bench: other bits in a second run\n");
    return right;
  }

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{256} << 20;
  static constexpr int kGuard = 4096;  ///< elements behind C that must stay as they are

  /// cuBLAS, for which a matrix in rows is its transpose in columns.
  void multiply(const Gemm& gemm, Layout layout, void* c, cudaDataType c_type) const {
    const float one = 1, zero = 0;
    const int m = static_cast<int>(gemm.m), n = static_cast<int>(gemm.n), k = static_cast<int>(gemm.k);
    const bool along_k = layout == Layout::k_major;
    check_cublas(cublasGemmEx(cublas_, along_k ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, gemm.b,
                              CUDA_R_16BF, along_k ? k : n, gemm.a, CUDA_R_16BF, k, &zero, c, c_type, n,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
  }

  [[nodiscard]] Difference compare(const Gemm& gemm, Layout layout) const {
    const DeviceArray<float> expected(gemm.m * gemm.n);
    const DeviceArray<Difference> on_device(1);
    check_cuda(cudaMemset(on_device.get(), 0, sizeof(Difference)), "cudaMemset");
    multiply(gemm, layout, expected.get(), CUDA_R_32F);
    compare_kernel<<<1024, 256>>>(gemm.c, expected.get(), gemm.m * gemm.n, gemm.k, on_device.get());
    spot_check_kernel<<<1024, 128>>>(gemm, layout, on_device.get());
    check_cuda(cudaGetLastError(), "comparison");
    Difference difference{};
    check_cuda(cudaMemcpy(&difference, on_device.get(), sizeof(Difference), cudaMemcpyDeviceToHost), "comparison");
    return difference;
  }

  [[nodiscard]] static bool untouched(const T* guard) {
    std::vector<std::uint16_t> host(kGuard);
    check_cuda(cudaMemcpy(host.data(), guard, kGuard * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return std::all_of(host.begin(), host.end(), [](std::uint16_t x) { return x == 0xffff; });
  }

  template <class Function>
  [[nodiscard]] static bool repeats(const Gemm& gemm, const Function& ours) {
    std::vector<std::uint16_t> first(static_cast<std::size_t>(gemm.m * gemm.n)), again(first.size());
    const std::size_t bytes = first.size() * sizeof(T);
    check_cuda(cudaMemcpy(first.data(), gemm.c, bytes, cudaMemcpyDeviceToHost), "copy to the host");
    for (int repeat = 0; repeat < 5; ++repeat) {
      check_cuda(cudaMemset(gemm.c, 0xff, bytes), "poison");
      ours();
      check_cuda(cudaMemcpy(again.data(), gemm.c, bytes, cudaMemcpyDeviceToHost), "copy to the host");
      if (again != first) return false;
    }
    return true;
  }

  /// Medians in milliseconds; the two take turns at being first.
  template <class Ours, class Theirs>
  [[nodiscard]] std::pair<double, double> time(const Ours& ours, const Theirs& theirs) const {
    constexpr int kWarmUp = 3;
    std::vector<float> ours_ms, theirs_ms;
    const auto sample = [&](const auto& function, std::vector<float>& out, bool kept) {
      check_cuda(cudaMemsetAsync(flush_.get(), 0, kFlushBytes), "flush");
      check_cuda(cudaEventRecord(begin_), "cudaEventRecord");
      function();
      check_cuda(cudaEventRecord(end_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_), "product");
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      if (kept) out.push_back(ms);
    };
    for (int i = 0; i < kWarmUp + samples_; ++i) {
      if (i % 2 == 0) sample(ours, ours_ms, i >= kWarmUp);
      sample(theirs, theirs_ms, i >= kWarmUp);
      if (i % 2 != 0) sample(ours, ours_ms, i >= kWarmUp);
    }
    return {median(ours_ms), median(theirs_ms)};
  }

  [[nodiscard]] static double median(std::vector<float> samples) {
    std::sort(samples.begin(), samples.end());
    const std::size_t middle = samples.size() / 2;
    return samples.size() % 2 != 0 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2.0;
  }

  static void print(const Variant& variant, const Gemm& gemm, const Difference& difference, bool right, double ours_ms,
                    double cublas_ms) {
    float error = 0, largest = 0;
    std::memcpy(&error, &difference.error_bits, sizeof(error));
    std::memcpy(&largest, &difference.largest_bits, sizeof(largest));
    const double flops = 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) * static_cast<double>(gemm.k);
    std::printf("{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"b\": \"%s\", \"cluster\": %d, \"rows\": %d, ",
                static_cast<long long>(gemm.m), static_cast<long long>(gemm.n), static_cast<long long>(gemm.k),
                variant.layout == Layout::k_major ? "k_major" : "mn_major", variant.cluster, variant.rows_together);
    if (ours_ms > 0) {
      std::printf("\"ours_tflops\": %.1f, \"cublas_tflops\": %.1f, \"ratio\": %.4f, ", flops / ours_ms / 1e9,
                  flops / cublas_ms / 1e9, cublas_ms / ours_ms);
    }
    if (std::isfinite(error)) {
      std::printf("\"max_rel_err\": %.3e, ", error / largest);
    } else {
      std::printf("\"max_rel_err\": null, ");
    }
    std::printf("\"wrong\": %llu, \"right\": %s}\n", difference.wrong, right ? "true" : "false");
    std::fflush(stdout);
  }

  int samples_;
  DeviceArray<char> flush_;
  cublasHandle_t cublas_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int multiprocessors_ = 0;
};

struct Size {
  std::int64_t m, n, k;
};

constexpr Size kTimed[] = {{8192, 8192, 8192}, {4096, 4096, 4096}, {1000, 1544, 520}};
// One tile; less than one everywhere; less than a step in K; ends within a tile, a panel and a step; few blocks with
// much to do; more tiles than blocks, in an incomplete group.
constexpr Size kChecked[] = {{128, 256, 64},  {8, 8, 8},        {1, 8, 2048},      {129, 264, 72},
                             {65, 1000, 136}, {256, 512, 8192}, {2176, 4352, 512}, {3000, 2568, 200}};

int run(int argc, char** argv) {
  bool checking = false;
  int cluster = 1, rows = 16, samples = 10;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 0; };
    if (argument == "--check") {
      checking = true;
    } else if (argument == "--cluster" && (cluster = number(), cluster == 1 || cluster == 2)) {
    } else if (argument == "--rows" && (rows = number(), rows > 0)) {
    } else if (argument == "--samples" && (samples = number(), samples > 0)) {
    } else {
      std::fprintf(stderr,
                   "gemm_sm90_bench: wrong argument at %s; [--check] [--cluster 1|2] [--rows N] [--samples N]\n",
                   argument.c_str());
      return 2;
    }
  }
  Bench bench(samples);
  int wrong = 0;
  const Layout layouts[] = {Layout::k_major, Layout::mn_major};
  if (checking) {
    for (const Size& size : kChecked) {
      for (const Layout layout : layouts)
        wrong += bench.run({layout, cluster, rows}, size.m, size.n, size.k, false) ? 0 : 1;
    }
    std::printf("{\"checks_wrong\": %d}\n", wrong);
  }
  for (const Size& size : kTimed) {
    for (const Layout layout : layouts)
      wrong += bench.run({layout, cluster, rows}, size.m, size.n, size.k, true) ? 0 : 1;
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace warpmeter::attention::gemm_sm90

int main(int argc, char** argv) {
  try {
    return warpmeter::attention::gemm_sm90::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gemm_sm90_bench: %s\n", error.what());
    return 1;
  }
}
