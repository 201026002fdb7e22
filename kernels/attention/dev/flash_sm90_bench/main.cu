// flash_sm90_bench: tile variants of the Hopper forward in one run, first for truth, then for speed; bf16.
//
//     flash_sm90_bench [--check|--check-small] [--time fa|gqa|dims] [--only SUBSTRING] [--head-dim D]
//                      [--length N] [--seconds S]
//
// One JSON line a figure on stdout. Times are medians of device time between events, with the L2 flushed before each
// sample, ten of them, or as many as take S seconds: a GPU that gets warm slows down. FLOPs as scripts/peers count
// them: half of N^2 pairs when causal.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/dev/bench_data.cuh"
#include "kernels/attention/dev/flash_cuda_bench/reference.cuh"
#include "kernels/attention/dev/flash_sm90_bench/variants.hpp"

namespace warpmeter::attention::flash_sm90::bench {
namespace {

using dev::fill_normal_kernel, dev::relative_error, dev::to_host;
using flash_sm80::check_cuda;
using T = __nv_bfloat16;

struct Case {
  int batch, heads, kv_heads, seq_len, kv_len, head_dim;
  bool causal;
};

template <class U>
U* device_array(std::int64_t count) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(count * sizeof(U), 16))), "cudaMalloc");
  return static_cast<U*>(data);
}

/// Dense operands of a case, filled, outputs poisoned.
struct Data {
  Case c;
  std::int64_t q_count, kv_count, rows;
  T *q, *k, *v, *o;
  float* lse;

  explicit Data(const Case& in)
      : c(in),
        q_count(std::int64_t{in.batch} * in.heads * in.seq_len * in.head_dim),
        kv_count(std::int64_t{in.batch} * in.kv_heads * in.kv_len * in.head_dim),
        rows(std::int64_t{in.batch} * in.heads * in.seq_len),
        q(device_array<T>(q_count)),
        k(device_array<T>(kv_count)),
        v(device_array<T>(kv_count)),
        o(device_array<T>(q_count)),
        lse(device_array<float>(rows)) {
    fill_normal_kernel<<<1024, 256>>>(q, q_count, 1);
    fill_normal_kernel<<<1024, 256>>>(k, kv_count, 2);
    fill_normal_kernel<<<1024, 256>>>(v, kv_count, 3);
    poison();
  }
  ~Data() {
    for (void* p : {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(o),
                    static_cast<void*>(lse)}) {
      cudaFree(p);
    }
  }
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  void poison() const {
    check_cuda(cudaMemset(o, 0xff, q_count * sizeof(T)), "poison");
    check_cuda(cudaMemset(lse, 0xff, rows * sizeof(float)), "poison");
  }

  ForwardArguments arguments() const {
    ForwardArguments a;
    const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    a.shape = {c.batch,
               c.heads,
               c.kv_heads,
               c.seq_len,
               c.kv_len,
               c.head_dim,
               c.causal,
               static_cast<float>(scale),
               static_cast<float>(scale * 1.4426950408889634)};
    const auto operand = [&](const T* data, std::int64_t heads, std::int64_t length) {
      return ConstTensorView{data, heads * length * c.head_dim, length * c.head_dim, c.head_dim};
    };
    a.q = operand(q, c.heads, c.seq_len);
    a.k = operand(k, c.kv_heads, c.kv_len);
    a.v = operand(v, c.kv_heads, c.kv_len);
    a.o = {o, std::int64_t{c.heads} * c.seq_len * c.head_dim, std::int64_t{c.seq_len} * c.head_dim, c.head_dim};
    a.lse = lse;
    a.work_counter = next_work_counter();
    (void)cudaDeviceGetAttribute(&a.multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    return a;
  }
};

bool check(const Variant& variant, Case c, int repeats) {
  c.causal = variant.causal;
  const Data data(c);
  double* out = device_array<double>(3 * data.q_count + 2 * data.rows);
  flash_bench::ReferenceProblem<T> p{c.batch * c.heads,
                                     c.batch * c.kv_heads,
                                     c.seq_len,
                                     c.kv_len,
                                     c.head_dim,
                                     c.causal,
                                     data.q,
                                     data.k,
                                     data.v,
                                     data.q,
                                     out,
                                     out + data.q_count,
                                     out + data.q_count + data.rows,
                                     out + data.q_count + 2 * data.rows,
                                     nullptr,
                                     nullptr};
  // Two doubles more than are used: ptxas reads pairs.
  flash_bench::reference_query_kernel<<<dim3(c.seq_len, c.batch * c.heads), 128, (c.kv_len + 2) * sizeof(double)>>>(p);
  variant.kernel.launch(data.arguments(), nullptr);
  check_cuda(cudaDeviceSynchronize(), "check");
  const auto first = to_host<T>(data.o, data.q_count);
  const double o = relative_error(first, to_host<double>(p.o, data.q_count));
  const double lse = relative_error(to_host<float>(data.lse, data.rows), to_host<double>(p.lse, data.rows));
  bool same = true;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    data.poison();
    variant.kernel.launch(data.arguments(), nullptr);
    const auto again = to_host<T>(data.o, data.q_count);
    same = same && std::memcmp(again.data(), first.data(), first.size() * sizeof(T)) == 0;
  }
  cudaFree(out);
  const bool right = o < 1.2e-2 && lse < 1e-4 && same;
  std::printf(
      "{\"check\": \"%s\", \"d\": %d, \"Sq\": %d, \"Sk\": %d, \"h\": \"%d/%d\", \"causal\": %s, \"o\": %.2e, "
      "\"lse\": %.2e, \"same\": %s, \"right\": %s}\n",
      variant.kernel.name, c.head_dim, c.seq_len, c.kv_len, c.heads, c.kv_heads, c.causal ? "true" : "false", o, lse,
      same ? "true" : "false", right ? "true" : "false");
  std::fflush(stdout);
  return right;
}

void time(const Variant& variant, Case c, void* flush, std::size_t flush_bytes, double seconds) {
  c.causal = variant.causal;
  const Data data(c);
  const ForwardArguments arguments = data.arguments();
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> samples;
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < 13 || std::chrono::steady_clock::now() - started < std::chrono::duration<double>(seconds); ++i) {
    cudaMemsetAsync(flush, 0, flush_bytes);
    cudaEventRecord(begin);
    variant.kernel.launch(arguments, nullptr);
    cudaEventRecord(end);
    check_cuda(cudaEventSynchronize(end), variant.kernel.name);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 3) samples.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(samples.begin(), samples.end());
  const double ms = samples[samples.size() / 2];
  const double flops = 4.0 * c.batch * c.heads * c.seq_len * c.kv_len * c.head_dim * (c.causal ? 0.5 : 1.0);
  std::printf(
      "{\"impl\": \"%s\", \"d\": %d, \"N\": %d, \"B\": %d, \"H\": %d, \"causal\": %s, \"fwd_ms\": %.5f, "
      "\"fwd_tflops\": %.1f, \"least_ms\": %.5f}\n",
      variant.kernel.name, c.head_dim, c.seq_len, c.batch, c.heads, c.causal ? "true" : "false", ms, flops / ms / 1e9,
      samples.front());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  bool checking = false, small = false;
  std::string timing, only;
  int head_dim = 0, length = 0;
  double seconds = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (argument == "--check" || argument == "--check-small") {  // small: for compute-sanitizer
      checking = true;
      small = argument == "--check-small";
    } else if (argument == "--time") {
      timing = value();
    } else if (argument == "--only") {
      only = value();
    } else if (argument == "--head-dim") {
      head_dim = std::atoi(value().c_str());
    } else if (argument == "--length") {
      length = std::atoi(value().c_str());
    } else if (argument == "--seconds") {
      seconds = std::atof(value().c_str());
    } else {
      std::fprintf(stderr, "flash_sm90_bench: unknown argument %s\n", argument.c_str());
      return 2;
    }
  }
  std::vector<Variant> variants;
  add_d64(variants);
  add_d128(variants);
  add_d256(variants);
  std::erase_if(variants, [&](const Variant& v) {
    return std::string(v.kernel.name).find(only) == std::string::npos ||
           (head_dim != 0 && v.kernel.head_dim != head_dim);
  });
  int wrong = 0;
  if (checking) {
    for (const Variant& variant : variants) {
      const int d = variant.kernel.head_dim;
      const Case cases[] = {
          {1, 2, 2, 128, 128, d, false},   {2, 4, 2, 250, 250, d, false},  {1, 2, 1, 1, 1000, d, false},
          {1, 2, 2, 1000, 1, d, false},    {1, 1, 1, 65, 127, d, false},   {1, 3, 3, 799, 3, d, false},
          {1, 2, 2, 1023, 1024, d, false}, {3, 8, 2, 700, 1100, d, false}, {1, 1, 1, 1, 1, d, false}};
      for (const Case& c : cases) {
        if (small && (std::max(c.seq_len, c.kv_len) > 300 || c.batch > 1)) continue;
        wrong += check(variant, c, small ? 1 : 5) ? 0 : 1;
      }
    }
    std::printf("{\"checks_wrong\": %d}\n", wrong);
  }
  if (!timing.empty()) {
    constexpr std::size_t kFlush = std::size_t{256} << 20;
    void* flush = device_array<char>(kFlush);
    for (const Variant& variant : variants) {
      const int d = variant.kernel.head_dim;
      if (timing == "fa") {
        for (const int n : {512, 1024, 2048, 4096, 8192, 16384}) {
          if (length != 0 && n != length) continue;
          time(variant, {16384 / n, 2048 / d, 2048 / d, n, n, d, false}, flush, kFlush, seconds);
        }
      } else if (timing == "gqa") {
        for (const int n : {2048, 8192, 16384}) time(variant, {2, 64, 8, n, n, d, false}, flush, kFlush, seconds);
      } else {
        time(variant, {2, 2048 / d, 2048 / d, 8192, 8192, d, false}, flush, kFlush, seconds);
      }
    }
    cudaFree(flush);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace warpmeter::attention::flash_sm90::bench

int main(int argc, char** argv) {
  try {
    return warpmeter::attention::flash_sm90::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flash_sm90_bench: %s\n", error.what());
    return 1;
  }
}
