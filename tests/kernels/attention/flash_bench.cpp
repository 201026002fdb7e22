// Times the CPU attention implementations and prints one JSON line a configuration; not a test. A PyTorch peer that
// prints the same fields can run beside it.
//
// usage: flash_bench [--impl flash,naive] [--threads N] [--dims 64,128] [--lengths 1024,4096] [--dtype fp32]
//                    [--batch 8] [--heads 1] [--repeat 15] [--max-time SECONDS] [--peak]
//
// GFLOP/s count visible pairs only (design: 4 * pairs * d forward, 2.5 x backward). --peak prints what this machine's
// threads reach in independent fused multiply-adds from registers, the ceiling of those figures.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "kernels/attention/registry.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/random.hpp"

namespace {

using namespace warpmeter;             // NOLINT
using namespace warpmeter::attention;  // NOLINT

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

/// CPU time of the process: what counts on a machine that others load too.
double cpu_ms() {
  return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC;
}

struct Times {
  double median = 0, min = 0;  ///< of the wall clock
  double cpu = 0;              ///< median CPU time, all threads together
};

template <class Body>
Times timed(int repeat, double max_ms, Body&& body) {
  body();
  body();
  std::vector<double> samples, cpu_samples;
  const double start = now_ms();
  while (static_cast<int>(samples.size()) < repeat && (samples.size() < 3 || now_ms() - start < max_ms)) {
    const double begin = now_ms(), cpu_begin = cpu_ms();
    body();
    samples.push_back(now_ms() - begin);
    cpu_samples.push_back(cpu_ms() - cpu_begin);
  }
  std::sort(samples.begin(), samples.end());
  std::sort(cpu_samples.begin(), cpu_samples.end());
  return {samples[samples.size() / 2], samples.front(), cpu_samples[cpu_samples.size() / 2]};
}

#if defined(__x86_64__)
template <class Vec, int count>
[[gnu::always_inline]] inline float multiply_add_loop(std::int64_t steps) {
  Vec acc[count];
  for (int i = 0; i < count; ++i) acc[i] = static_cast<float>(i) * 0.001f - Vec{};
  Vec factor = 0.999f - Vec{}, term = 0.001f - Vec{};
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) acc[i] = acc[i] * factor + term;
  }
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += acc[i][0];
  return sum;
}
using Vec16 = float __attribute__((vector_size(64)));
using Vec8 = float __attribute__((vector_size(32)));
__attribute__((target("avx512f,fma,prefer-vector-width=512"), optimize("fp-contract=fast"))) float loop_avx512(
    std::int64_t steps) {
  return multiply_add_loop<Vec16, 16>(steps);
}
__attribute__((target("avx2,fma"), optimize("fp-contract=fast"))) float loop_avx2(std::int64_t steps) {
  return multiply_add_loop<Vec8, 12>(steps);
}

void print_peak() {
  const bool wide = cpu_isa() == CpuIsa::avx512;
  if (cpu_isa() == CpuIsa::generic) return;
  const std::int64_t steps = 20'000'000;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double begin = now_ms();
    std::vector<float> sink(static_cast<std::size_t>(num_threads()));
    parallel_workers([&](int worker, int) {
      sink[static_cast<std::size_t>(worker)] = wide ? loop_avx512(steps) : loop_avx2(steps);
    });
    const double flops = static_cast<double>(steps) * (wide ? 16 * 32 : 12 * 16) * num_threads();
    if (sink[0] != 0) best = std::max(best, flops / (now_ms() - begin) / 1e6);
  }
  std::printf("{\"impl\": \"fma_peak\", \"threads\": %d, \"gflops\": %.1f}\n", num_threads(), best);
}
#else
void print_peak() {}
#endif

void run(const Implementation& implementation, const AttentionProblem& problem, int repeat, double max_ms) {
  CachingAllocator allocator(Device::cpu());
  const Context context{StreamView{}, &allocator};
  const auto query = [&] {
    return Tensor(context, {problem.batch, problem.num_heads, problem.seq_len, problem.head_dim}, problem.dtype);
  };
  const auto key = [&] {
    return Tensor(context, {problem.batch, problem.num_kv_heads, problem.kv_len, problem.head_dim}, problem.dtype);
  };
  const Tensor q = query(), k = key(), v = key(), o = query(), d_o = query(), dq = query(), dk = key(), dv = key();
  const Tensor lse(context, {problem.batch, problem.num_heads, problem.seq_len}, DType::fp32);
  std::uint64_t id = 0;
  for (const Tensor* tensor : {&q, &k, &v, &d_o}) fill_normal(*tensor, 1, id++, context.stream);

  const ForwardArguments forward{as_const(operand_bhsd(q)), as_const(operand_bhsd(k)), as_const(operand_bhsd(v)),
                                 operand_bhsd(o), lse.data_as<float>()};
  const Times fwd = timed(repeat, max_ms, [&] { (void)implementation.forward(context, problem, forward, false); });
  const auto saved = implementation.forward(context, problem, forward, true);
  const BackwardArguments backward{
      forward.q,   forward.k,        forward.v,        as_const(forward.o), as_const(operand_bhsd(d_o)),
      forward.lse, operand_bhsd(dq), operand_bhsd(dk), operand_bhsd(dv)};
  const Times bwd = timed(repeat, max_ms, [&] { implementation.backward(context, problem, backward, saved.get()); });
  std::printf(
      "{\"impl\": \"%s\", \"kernel\": \"%s\", \"d\": %lld, \"N\": %lld, \"dtype\": \"%s\", \"threads\": %d, "
      "\"fwd_ms\": %.3f, \"bwd_ms\": %.3f, \"fwd_min_ms\": %.3f, \"bwd_min_ms\": %.3f, \"fwd_cpu_ms\": %.3f, "
      "\"bwd_cpu_ms\": %.3f, \"fwd_gflops\": %.1f, "
      "\"bwd_gflops\": %.1f}\n",
      std::string(implementation.name()).c_str(), implementation.kernel(problem, Pass::forward).c_str(),
      static_cast<long long>(problem.head_dim), static_cast<long long>(problem.seq_len),
      std::string(name(problem.dtype)).c_str(), num_threads(), fwd.median, bwd.median, fwd.min, bwd.min, fwd.cpu,
      bwd.cpu, problem.forward_flops() / fwd.median / 1e6, problem.backward_flops() / bwd.median / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"--impl", "flash"},        {"--threads", "0"},  {"--dims", "64,128"},
                                                {"--lengths", "1024,4096"}, {"--dtype", "fp32"}, {"--batch", "8"},
                                                {"--heads", "1"},           {"--repeat", "15"},  {"--max-time", "6"}};
  bool peak = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--peak") {
      peak = true;
    } else if (options.count(argv[i]) != 0 && i + 1 < argc) {
      options[argv[i]] = argv[i + 1];
      ++i;
    } else {
      std::fprintf(stderr, "flash_bench: unknown option or no value: %s\n", argv[i]);
      return 2;
    }
  }
  const auto number = [&](const char* option) { return std::atoi(options[option].c_str()); };
  if (number("--threads") > 0) set_num_threads(number("--threads"));
  if (peak) print_peak();
  for (const std::string& name : words(options["--impl"])) {
    const Implementation* implementation = find_implementation(DeviceKind::cpu, name);
    if (implementation == nullptr) {
      std::fprintf(stderr, "flash_bench: no implementation %s\n", name.c_str());
      return 2;
    }
    for (const std::string& dtype : words(options["--dtype"])) {
      for (const std::string& dim : words(options["--dims"])) {
        for (const std::string& length : words(options["--lengths"])) {
          AttentionProblem problem;
          problem.batch = number("--batch");
          problem.num_heads = problem.num_kv_heads = number("--heads");
          problem.seq_len = problem.kv_len = std::atoll(length.c_str());
          problem.head_dim = std::atoll(dim.c_str());
          problem.dtype = parse_dtype(dtype).value_or(DType::fp64);
          if (implementation->unsupported(problem, Pass::forward)) {
            std::fprintf(stderr, "flash_bench: %s does not run %s\n", name.c_str(), dtype.c_str());
            return 2;
          }
          run(*implementation, problem, number("--repeat"), number("--max-time") * 1e3);
        }
      }
    }
  }
  return 0;
}
