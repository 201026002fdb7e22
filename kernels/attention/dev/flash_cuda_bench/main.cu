// flash_cuda_bench: the flash_sm80 kernels and tile variants in one run, first for truth, then for speed: bf16, and as
// flash_cuda_bench_fp32 3xTF32.
//
//     flash_cuda_bench [--check] [--time fa|notes|quick] [--pass fwd|bwd|both] [--only SUBSTRING] [--budget SECONDS]
//
// One JSON line a figure on stdout: {"impl", "d", "N", "batch", "heads", "dtype", "causal", "fwd_ms", ...}; a check
// prints the largest error over the largest reference of each output. Times are medians of device time between events,
// with the L2 flushed before each sample. FLOPs as scripts/peers count them: half of N^2 pairs when causal.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/dev/bench_data.cuh"
#include "kernels/attention/dev/flash_cuda_bench/reference.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {
namespace {

using dev::fill_normal_kernel, dev::relative_error, dev::to_host;
using flash_sm80::check_cuda;
#if WM_BENCH_FP32
using T = float;
constexpr const char* kDtype = "fp32";
constexpr double kTolerance = 1e-5;
constexpr int kHeadDims[] = {16, 64, 128};
#else
using T = __nv_bfloat16;
constexpr const char* kDtype = "bf16";
constexpr double kTolerance = 1.2e-2;  // P and dS rounded to 2^-9, a factor for sums of few terms
constexpr int kHeadDims[] = {64, 128};
#endif
constexpr std::int64_t kBytes = sizeof(T);

struct DeviceBytes {
  void* data = nullptr;
  explicit DeviceBytes(std::int64_t bytes) {
    check_cuda(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16))), "cudaMalloc");
  }
  ~DeviceBytes() { cudaFree(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  template <class U>
  U* as() const {
    return static_cast<U*>(data);
  }
};

struct Case {
  int batch, heads, kv_heads, seq_len, kv_len, head_dim;
  bool causal, deterministic;
};

/// Dense (batch, heads, rows, head_dim) operands of a case, filled, outputs poisoned.
struct Data {
  Case c;
  std::int64_t q_count, kv_count, rows;
  DeviceBytes q, k, v, d_o, o, lse, dq, dk, dv;

  explicit Data(const Case& in)
      : c(in),
        q_count(std::int64_t{in.batch} * in.heads * in.seq_len * in.head_dim),
        kv_count(std::int64_t{in.batch} * in.kv_heads * in.kv_len * in.head_dim),
        rows(std::int64_t{in.batch} * in.heads * in.seq_len),
        q(q_count * kBytes),
        k(kv_count * kBytes),
        v(kv_count * kBytes),
        d_o(q_count * kBytes),
        o(q_count * kBytes),
        lse(rows * 4),
        dq(q_count * kBytes),
        dk(kv_count * kBytes),
        dv(kv_count * kBytes) {
    std::uint64_t seed = 1;
    for (const auto& [bytes, count] : {std::pair{&q, q_count}, {&k, kv_count}, {&v, kv_count}, {&d_o, q_count}}) {
      fill_normal_kernel<<<1024, 256>>>(bytes->as<T>(), count, seed++);
    }
    check_cuda(cudaMemset(o.data, 0xff, q_count * kBytes), "poison");
    check_cuda(cudaMemset(lse.data, 0xff, rows * 4), "poison");
    poison_gradients();
  }
  void poison_gradients() {
    check_cuda(cudaMemset(dq.data, 0xff, q_count * kBytes), "poison");
    check_cuda(cudaMemset(dk.data, 0xff, kv_count * kBytes), "poison");
    check_cuda(cudaMemset(dv.data, 0xff, kv_count * kBytes), "poison");
  }

  template <class View>
  View view(void* data, int heads, int rows_a_head) const {
    const std::int64_t d = c.head_dim;
    return {data, std::int64_t{heads} * rows_a_head * d, rows_a_head * d, d};
  }
  flash_sm80::Shape shape() const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    return {c.batch,
            c.heads,
            c.kv_heads,
            c.seq_len,
            c.kv_len,
            c.head_dim,
            c.causal,
            static_cast<float>(scale),
            static_cast<float>(scale * 1.4426950408889634)};
  }
  flash_sm80::ForwardParams forward() const {
    using flash_sm80::ConstTensorView;
    flash_sm80::ForwardParams p;
    p.shape = shape();
    p.schedule.heads_per_group = flash_sm80::heads_per_group(2 * kBytes * c.kv_len * c.head_dim);
    p.q = view<ConstTensorView>(q.data, c.heads, c.seq_len);
    p.k = view<ConstTensorView>(k.data, c.kv_heads, c.kv_len);
    p.v = view<ConstTensorView>(v.data, c.kv_heads, c.kv_len);
    p.o = view<flash_sm80::TensorView>(o.data, c.heads, c.seq_len);
    p.lse = lse.as<float>();
    p.vector = true;
    return p;
  }
  flash_sm80::BackwardParams backward() const {
    using flash_sm80::ConstTensorView, flash_sm80::TensorView;
    flash_sm80::BackwardParams p;
    p.shape = shape();
    p.schedule.heads_per_group = flash_sm80::heads_per_group(2 * kBytes * c.seq_len * c.head_dim);
    p.q = view<ConstTensorView>(q.data, c.heads, c.seq_len);
    p.k = view<ConstTensorView>(k.data, c.kv_heads, c.kv_len);
    p.v = view<ConstTensorView>(v.data, c.kv_heads, c.kv_len);
    p.o = view<ConstTensorView>(o.data, c.heads, c.seq_len);
    p.d_o = view<ConstTensorView>(d_o.data, c.heads, c.seq_len);
    p.lse = lse.as<float>();
    p.dq = view<TensorView>(dq.data, c.heads, c.seq_len);
    p.dk = view<TensorView>(dk.data, c.kv_heads, c.kv_len);
    p.dv = view<TensorView>(dv.data, c.kv_heads, c.kv_len);
    p.vector = true;
    p.deterministic = c.deterministic;
    return p;
  }
};

/// A backward's workspace, given to params.
struct Workspace {
  DeviceBytes row_stats, dq_accumulator, turns;
  Workspace(const flash_sm80::BackwardWorkspace& bytes, flash_sm80::BackwardParams& params)
      : row_stats(bytes.row_stats), dq_accumulator(bytes.dq_accumulator), turns(bytes.turns) {
    params.row_stats = row_stats.as<float>();
    params.dq_accumulator = dq_accumulator.as<float>();
    params.turns = turns.as<int>();
  }
};

struct Reference {
  std::vector<double> o, lse, d, dq, dk, dv;
};

Reference reference(const Data& data) {
  const Case& c = data.c;
  DeviceBytes o(data.q_count * 8), lse(data.rows * 8), d(data.rows * 8), dq(data.q_count * 8), dk(data.kv_count * 8),
      dv(data.kv_count * 8);
  const ReferenceProblem<T> p = {
      c.batch * c.heads, c.batch * c.kv_heads, c.seq_len,       c.kv_len,         c.head_dim,     c.causal,
      data.q.as<T>(),    data.k.as<T>(),       data.v.as<T>(),  data.d_o.as<T>(), o.as<double>(), lse.as<double>(),
      d.as<double>(),    dq.as<double>(),      dk.as<double>(), dv.as<double>()};
  reference_query_kernel<T><<<dim3(c.seq_len, c.batch * c.heads), 128, c.kv_len * 8>>>(p);
  reference_key_kernel<T><<<dim3(c.kv_len, c.batch * c.kv_heads), 128, c.seq_len * 16>>>(p);
  check_cuda(cudaDeviceSynchronize(), "reference");
  return {to_host<double>(o.data, data.q_count),   to_host<double>(lse.data, data.rows),
          to_host<double>(d.data, data.rows),      to_host<double>(dq.data, data.q_count),
          to_host<double>(dk.data, data.kv_count), to_host<double>(dv.data, data.kv_count)};
}

int failures = 0;

/// A quantity of a check: its largest error over its largest reference, and the first element that is wrong.
struct Compared {
  const char* name;
  double error;
  std::int64_t first_wrong = -1;
  double got = 0, expected = 0;
};

template <class U>
Compared compare(const char* name, const std::vector<U>& got, const std::vector<double>& expected, double tolerance) {
  Compared result{name, relative_error(got, expected)};
  if (result.error <= tolerance) return result;
  double largest = 0;
  for (const double e : expected) {
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
  }
  for (std::size_t i = 0; i < got.size() && result.first_wrong < 0; ++i) {
    const double value = static_cast<float>(got[i]);
    if (value == expected[i] || std::abs(value - expected[i]) <= tolerance * largest) continue;
    result.first_wrong = static_cast<std::int64_t>(i);
    result.got = value;
    result.expected = expected[i];
  }
  return result;
}

void print_number(double value) {
  if (std::isfinite(value)) {
    std::printf("%.4g", value);
  } else {
    std::printf("\"%f\"", value);
  }
}

/// One line a check. A quantity that is wrong adds its first wrong element: the intermediate ones (row statistics of a
/// backward) come first in the list, so the first that is wrong says where to look.
void report_check(const char* impl, const Case& c, const std::vector<Compared>& quantities) {
  bool ok = true;
  std::printf("{\"check\": \"%s\", \"shape\": \"b%d h%d/%d s%d/%d d%d%s%s\"", impl, c.batch, c.heads, c.kv_heads,
              c.seq_len, c.kv_len, c.head_dim, c.causal ? " causal" : "", c.deterministic ? " deterministic" : "");
  for (const Compared& quantity : quantities) {
    std::printf(", \"%s\": ", quantity.name);
    print_number(quantity.error);
    if (quantity.first_wrong < 0) continue;
    ok = false;
    std::printf(", \"%s_wrong\": {\"index\": %lld, \"got\": ", quantity.name,
                static_cast<long long>(quantity.first_wrong));
    print_number(quantity.got);
    std::printf(", \"expected\": ");
    print_number(quantity.expected);
    std::printf("}");
  }
  std::printf(", \"ok\": %s}\n", ok ? "true" : "false");
  std::fflush(stdout);
  failures += ok ? 0 : 1;
}

/// What the prepare kernel left for the key-block kernel, taken out of its tiles: LSE in powers of two or D.
std::vector<float> row_statistics(const Data& data, const float* row_stats, int rows_m, bool second) {
  const std::int64_t tiles = (data.c.seq_len + rows_m - 1) / rows_m;
  const std::int64_t heads = data.c.batch * data.c.heads;
  const auto all = to_host<float>(row_stats, heads * tiles * 2 * rows_m);
  std::vector<float> rows;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t row = 0; row < data.c.seq_len; ++row) {
      rows.push_back(all[((head * tiles + row / rows_m) * 2 + (second ? 1 : 0)) * rows_m + row % rows_m]);
    }
  }
  return rows;
}

void check_case(const Case& c, const std::vector<ForwardVariant>& forward,
                const std::vector<BackwardVariant>& backward) {
  Data data(c);
  const Reference expected = reference(data);
  for (const auto& variant : forward) {
    check_cuda(cudaMemset(data.o.data, 0xff, data.q_count * kBytes), "poison");
    check_cuda(cudaMemset(data.lse.data, 0xff, data.rows * 4), "poison");
    variant.kernel.launch(data.forward(), nullptr);
    check_cuda(cudaDeviceSynchronize(), variant.kernel.name);
    report_check(variant.kernel.name, c,
                 {compare("o", to_host<T>(data.o.data, data.q_count), expected.o, kTolerance),
                  compare("lse", to_host<float>(data.lse.data, data.rows), expected.lse, kTolerance)});
  }
  // As prepare writes it: +inf for a row that sees nothing.
  std::vector<double> lse_log2 = expected.lse;
  for (double& x : lse_log2) x = x == -INFINITY ? INFINITY : x * 1.4426950408889634;
  for (const auto& variant : backward) {
    auto params = data.backward();
    const Workspace workspace(variant.kernel.workspace(params.shape, c.deterministic), params);
    std::vector<T> first;
    std::vector<double> differ = {0};
    for (int run = 0; run < (c.deterministic ? 3 : 1); ++run) {
      data.poison_gradients();
      variant.kernel.launch(params, nullptr);
      check_cuda(cudaDeviceSynchronize(), variant.kernel.name);
      const auto dq = to_host<T>(data.dq.data, data.q_count);
      if (run > 0 && std::memcmp(dq.data(), first.data(), dq.size() * sizeof(T)) != 0) differ[0] = 1;
      first = dq;
    }
    std::vector<Compared> quantities = {compare("dv", to_host<T>(data.dv.data, data.kv_count), expected.dv, kTolerance),
                                        compare("dk", to_host<T>(data.dk.data, data.kv_count), expected.dk, kTolerance),
                                        compare("dq", first, expected.dq, kTolerance),
                                        compare("bits_differ", std::vector<float>{0}, differ, 0)};
    if (variant.rows_m > 0) {
      quantities.push_back(
          compare("lse_log2", row_statistics(data, params.row_stats, variant.rows_m, false), lse_log2, kTolerance));
      quantities.push_back(
          compare("d", row_statistics(data, params.row_stats, variant.rows_m, true), expected.d, kTolerance));
    }
    report_check(variant.kernel.name, c, quantities);
  }
}

struct Flusher {
  DeviceBytes bytes{std::int64_t{256} << 20};
  void flush() const { check_cuda(cudaMemsetAsync(bytes.data, 0, std::size_t{256} << 20, nullptr), "flush"); }
};

/// Median device milliseconds of `launch`.
double time_ms(const Flusher& flusher, double budget_ms, const std::function<void()>& launch) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> samples;
  double spent = 0;
  for (int i = 0; i < 2; ++i) launch();
  while (samples.size() < 3 || (samples.size() < 15 && spent < budget_ms)) {
    flusher.flush();
    check_cuda(cudaEventRecord(begin), "cudaEventRecord");
    launch();
    check_cuda(cudaEventRecord(end), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "timed launch");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    samples.push_back(ms);
    spent += ms + 0.1;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void report_time(const char* impl, const Case& c, const char* pass, double ms) {
  const double pairs = static_cast<double>(c.seq_len) * c.kv_len * (c.causal ? 0.5 : 1.0);
  const double flops = 4.0 * c.batch * c.heads * pairs * c.head_dim * (pass[0] == 'b' ? 2.5 : 1.0);
  std::printf(
      "{\"impl\": \"%s\", \"d\": %d, \"N\": %d, \"batch\": %d, \"heads\": %d, \"dtype\": \"%s\", "
      "\"causal\": %s, \"deterministic\": %s, \"%s_ms\": %.5f, \"%s_tflops\": %.1f}\n",
      impl, c.head_dim, c.seq_len, c.batch, c.heads, kDtype, c.causal ? "true" : "false",
      c.deterministic ? "true" : "false", pass, ms, pass, flops / ms / 1e9);
  std::fflush(stdout);
}

struct Options {
  bool check = false;
  std::string time, pass = "both", only;
  double budget_ms = 20;
};

bool wanted(const Options& options, const char* name) {
  return options.only.empty() || std::strstr(name, options.only.c_str()) != nullptr;
}

void time_case(const Options& options, const Flusher& flusher, const Case& c,
               const std::vector<ForwardVariant>& forward, const std::vector<BackwardVariant>& backward) {
  Data data(c);
  if (options.pass != "bwd" && !c.deterministic) {
    for (const auto& variant : forward) {
      report_time(variant.kernel.name, c, "fwd",
                  time_ms(flusher, options.budget_ms, [&] { variant.kernel.launch(data.forward(), nullptr); }));
    }
  }
  if (options.pass != "fwd") {
    forward.front().kernel.launch(data.forward(), nullptr);  // O and LSE
    for (const auto& variant : backward) {
      auto params = data.backward();
      const Workspace workspace(variant.kernel.workspace(params.shape, c.deterministic), params);
      report_time(variant.kernel.name, c, "bwd",
                  time_ms(flusher, options.budget_ms, [&] { variant.kernel.launch(params, nullptr); }));
    }
  }
}

int usage(const char* what) {
  std::fprintf(stderr,
               "flash_cuda_bench: %s; accepted: [--check] [--time fa|notes|quick] [--pass fwd|bwd|both] "
               "[--only SUBSTRING] [--budget SECONDS]\n",
               what);
  return 2;
}

template <class Variant>
std::vector<Variant> select(const Options& options, std::vector<Variant> all) {
  std::erase_if(all, [&](const Variant& v) { return !wanted(options, v.kernel.name); });
  return all;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (option == "--check") {
      options.check = true;
    } else if (option == "--time") {
      options.time = value();
      if (options.time != "fa" && options.time != "notes" && options.time != "quick") return usage("--time");
    } else if (option == "--pass") {
      options.pass = value();
      if (options.pass != "fwd" && options.pass != "bwd" && options.pass != "both") return usage("--pass");
    } else if (option == "--only") {
      options.only = value();
    } else if (option == "--budget") {
      options.budget_ms = std::atof(value().c_str()) * 1000;
      if (!(options.budget_ms > 0)) return usage("--budget");
    } else {
      return usage(option.c_str());
    }
  }
  for (const int d : kHeadDims) {
    const auto forward = select(options, forward_variants(d));
    const auto backward = select(options, backward_variants(d));
    if (options.check) {
      for (const auto& [sq, sk] : {std::pair{1, 1}, {3, 799}, {799, 3}, {113, 203}, {1023, 1024}}) {
        for (const bool causal : {false, true}) check_case({2, 4, 2, sq, sk, d, causal, false}, forward, backward);
      }
      check_case({1, 2, 2, 1100, 900, d - (d > 24 ? 24 : 4), true, false}, forward, backward);
      for (const bool causal : {false, true}) check_case({2, 4, 2, 1100, 1100, d, causal, true}, forward, backward);
    }
    if (options.time.empty() || forward.empty()) continue;
    const Flusher flusher;
    const int heads = 2048 / d;
    if (options.time == "fa") {
      for (const int n : {512, 1024, 2048, 4096, 8192, 16384}) {
        for (const bool causal : {true, false}) {
          time_case(options, flusher, {16384 / n, heads, heads, n, n, d, causal, false}, forward, backward);
        }
      }
    }
    if (options.time == "quick") {
      for (const int n : {512, 2048, 16384}) {
        for (const bool causal : {true, false}) {
          time_case(options, flusher, {16384 / n, heads, heads, n, n, d, causal, false}, forward, backward);
        }
      }
      for (const bool causal : {true, false}) {
        time_case(options, flusher, {4, heads, heads, 4096, 4096, d, causal, true}, forward, backward);
      }
    }
    if (options.time == "notes") {
      for (const int n : {256, 1024, 4096, 8192, 16384}) {
        time_case(options, flusher, {8, 1, 1, n, n, d, true, false}, forward, backward);
      }
    }
  }
  if (failures > 0) std::fprintf(stderr, "flash_cuda_bench: %d checks failed\n", failures);
  return failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace warpmeter::attention::flash_bench

int main(int argc, char** argv) {
  try {
    return warpmeter::attention::flash_bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flash_cuda_bench: %s\n", error.what());
    return 1;
  }
}
