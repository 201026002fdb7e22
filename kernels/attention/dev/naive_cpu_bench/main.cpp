// naive's backward on the CPU, phase by phase, as the product cuts and deals it and in other ways; prints milliseconds.
//
// usage: naive_cpu_bench [--threads N] [--lengths 256,512] [--dims 128] [--batch 8] [--rounds 60] [--variants a,b]
//                        [--clock wall|cpu]
//
// --clock cpu counts the CPU time of all threads together: for one thread on a machine that others load.
// Variants take turns within a round, so that a machine that others load slows all of them alike. A figure is the
// median over the rounds; "best" is the smallest total. Every variant's dQ, dK, dV are compared with the product's.
//
// A variant's name says who computes the products, the rows of a panel, and how the passes (softmax, mask, scale) are
// dealt: `s` in order, to each core the same rows every time, `d` as cores come free, as the products are.
//   panels      one call of the BLAS a panel
//   blocks      dV, dQ and dK in blocks that the BLAS does not pack; dP, whose B is transposed, as panels
//   allblocks   dP too, its B transposed block by block
//   flash       flash's register blocks, without the BLAS

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cblas.h>

#include "kernels/attention/detail/gemm_plan.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/detail/scores.hpp"
#include "kernels/attention/dev/naive_cpu_bench/direct_products.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attention::dev {

namespace {

void direct_product(const DirectPanel& panel) {
  const auto product = cpu_isa() == CpuIsa::avx512 ? avx512::direct_product
                       : cpu_isa() == CpuIsa::avx2 ? avx2::direct_product
                                                   : generic::direct_product;
  product(panel);
}
using detail::GemmPlan;
using detail::Scores;

/// How the passes between the products (softmax, mask, scale) are dealt to the cores.
enum class Deal : std::uint8_t { in_order, as_free };

constexpr const char* kPhases[] = {"dV", "dP", "softmax", "mask", "scale", "dQ", "dK"};
constexpr int kPhaseCount = 7;

enum class By : std::uint8_t { panels, blocks, all_blocks, flash };

struct Variant {
  std::string name;
  std::int64_t rows = 0;  ///< 0: what the product takes
  Deal passes = Deal::in_order;
  By by = By::panels;
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"product", 0, Deal::in_order, By::panels}};
  for (const auto& [word, by] : std::initializer_list<std::pair<const char*, By>>{
           {"panels", By::panels}, {"blocks", By::blocks}, {"allblocks", By::all_blocks}, {"flash", By::flash}}) {
    for (const std::int64_t rows : {32, 64, 128, 256}) {
      if (rows == 32 && (by == By::panels || by == By::flash)) continue;  // all packing
      for (const auto& [letter, passes] :
           std::initializer_list<std::pair<const char*, Deal>>{{"s", Deal::in_order}, {"d", Deal::as_free}}) {
        // flash's register blocks have six rows
        all.push_back({word + std::to_string(rows) + letter, by == By::flash ? rows / 6 * 6 : rows, passes, by});
      }
    }
  }
  return all;
}

bool by_cpu_time = false;  // --clock cpu

double now_ms() {
  if (by_cpu_time) return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC;
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

template <class Body>
void deal(Deal how, std::int64_t count, Body&& body) {
  if (how == Deal::in_order) {
    parallel_workers([&](int worker, int workers) {
      const std::int64_t end = count * (worker + 1) / workers;
      for (std::int64_t index = count * worker / workers; index < end; ++index) body(index, worker);
    });
  } else {
    parallel_for(count, body);
  }
}

class Backward {
 public:
  explicit Backward(const AttentionProblem& problem) : p_(problem) {
    for (Tensor* t : {&q_, &k_, &v_, &o_, &d_o_, &dq_, &dk_, &dv_}) {
      *t = Tensor(context_, {p_.batch, 1, p_.seq_len, p_.head_dim}, DType::fp32);
    }
    lse_ = Tensor(context_, {p_.batch, 1, p_.seq_len}, DType::fp32);
    std::uint64_t id = 0;
    for (const Tensor* t : {&q_, &k_, &v_, &d_o_}) fill_normal(*t, 1, id++, context_.stream);
    const ForwardArguments forward{in(q_), in(k_), in(v_), operand_bhsd(o_), lse_.data_as<float>()};
    saved_ = naive().forward(context_, p_, forward, true);
    naive_backward();
    for (const Tensor* t : {&dq_, &dk_, &dv_}) right_.push_back(values(*t));
  }

  /// The product itself, in one go.
  void naive_backward() {
    naive().backward(context_, p_,
                     {in(q_), in(k_), in(v_), in(o_), in(d_o_), lse_.data_as<float>(), operand_bhsd(dq_),
                      operand_bhsd(dk_), operand_bhsd(dv_)},
                     saved_.get());
  }

  /// One backward; adds each phase's milliseconds to `times`.
  void run(const Variant& v, std::vector<double> (&times)[kPhaseCount]) {
    const detail::RowOps& ops = detail::row_ops(DType::fp32);
    const auto& p = dynamic_cast<const detail::SavedProbabilities&>(*saved_).p();
    const auto timed = [&](int phase, auto&& body) {
      const double begin = now_ms();
      body();
      times[phase].push_back(now_ms() - begin);
    };
    timed(0, [&] { product(v, summed(), as_const(p.operand()), in(d_o_), operand_bhsd(dv_)); });
    auto gradient = std::make_unique<Scores>(context_, p_);
    timed(1, [&] { product(v, by_keys(), in(d_o_), in(v_), gradient->operand()); });
    const auto pass = [&](int phase, auto&& row_op) {
      timed(phase, [&] {
        auto next = std::make_unique<Scores>(context_, p_);
        const std::int64_t rows = p_.batch * p_.seq_len, block = std::max<std::int64_t>(1, (1 << 15) / p_.kv_len);
        deal(v.passes, (rows + block - 1) / block, [&](std::int64_t index, int) {
          for (std::int64_t r = index * block; r < std::min(rows, (index + 1) * block); ++r) {
            row_op(r, gradient->row(r), next->row(r));
          }
        });
        gradient = std::move(next);
      });
    };
    pass(2, [&](std::int64_t r, void* from, void* to) { ops.softmax_backward(p.row(r), from, to, p_.kv_len); });
    pass(3, [&](std::int64_t r, void* from, void* to) {
      ops.mask(from, to, p_.kv_len, p_.visible_keys(r % p_.seq_len), 0);
    });
    const float factor = static_cast<float>(p_.scale());
    pass(4, [&](std::int64_t, void* from, void* to) { ops.scale(from, to, p_.kv_len, factor); });
    timed(5, [&] { product(v, per_query(), as_const(gradient->operand()), in(k_), operand_bhsd(dq_)); });
    timed(6, [&] { product(v, summed(), as_const(gradient->operand()), in(q_), operand_bhsd(dk_)); });
  }

  /// The largest difference of dQ, dK, dV from the product's, relative to the largest value of each.
  [[nodiscard]] double difference() const {
    double worst = 0;
    std::size_t which = 0;
    for (const Tensor* t : {&dq_, &dk_, &dv_}) {
      const std::vector<float>&right = right_[which++], got = values(*t);
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < right.size(); ++i) {
        largest = std::max<double>(largest, std::fabs(right[i]));
        off = std::max<double>(off, std::fabs(right[i] - got[i]));
        if (std::isnan(got[i])) return NAN;
      }
      worst = std::max(worst, off / largest);
    }
    return worst;
  }
  void poison() {
    for (Tensor* t : {&dq_, &dk_, &dv_}) t->fill_bytes(0xFF, {});
  }

 private:
  static const Implementation& naive() { return *find_implementation(DeviceKind::cpu, "naive"); }
  static ConstOperand in(const Tensor& t) { return as_const(operand_bhsd(t)); }
  static std::vector<float> values(const Tensor& t) {
    std::vector<float> result(t.bytes() / sizeof(float));
    std::memcpy(result.data(), t.data(), t.bytes());
    return result;
  }

  [[nodiscard]] GemmProblem gemm(std::int64_t m, std::int64_t n, std::int64_t k) const {
    GemmProblem g;
    g.batch = p_.batch;
    g.m = m;
    g.n = n;
    g.k = k;
    return g;
  }
  [[nodiscard]] GemmProblem by_keys() const {
    GemmProblem g = gemm(p_.seq_len, p_.kv_len, p_.head_dim);
    g.transpose_b = true;
    return g;
  }
  [[nodiscard]] GemmProblem per_query() const { return gemm(p_.seq_len, p_.head_dim, p_.kv_len); }
  [[nodiscard]] GemmProblem summed() const {
    GemmProblem g = gemm(p_.kv_len, p_.head_dim, p_.seq_len);
    g.transpose_a = true;
    return g;
  }

  void product(const Variant& v, const GemmProblem& g, ConstOperand a, ConstOperand b, Operand c) {
    if (v.by == By::flash) return direct(v, g, a, b, c);
    GemmPlan plan = detail::gemm_plan(g);
    if (v.rows != 0) plan = {v.rows, v.by == By::all_blocks || (v.by == By::blocks && !g.transpose_b)};
    detail::gemm_cpu(plan, g, a, b, c);
  }

  void direct(const Variant& v, const GemmProblem& g, ConstOperand a, ConstOperand b, Operand c) {
    const std::int64_t panels = (g.m + v.rows - 1) / v.rows;
    scratch_.resize(static_cast<std::size_t>(num_threads() * g.n * g.k));
    parallel_for(g.batch * panels, [&](std::int64_t index, int worker) {
      const std::int64_t batch = index / panels, row = index % panels * v.rows;
      const float* pa = static_cast<const float*>(a.data) + batch * a.batch_stride;
      DirectPanel panel{};
      panel.transpose_a = g.transpose_a;
      panel.transpose_b = g.transpose_b;
      panel.m = std::min(v.rows, g.m - row);
      panel.n = g.n;
      panel.k = g.k;
      panel.a = pa + (g.transpose_a ? row : row * a.row_stride);
      panel.lda = a.row_stride;
      panel.b = static_cast<const float*>(b.data) + batch * b.batch_stride;
      panel.ldb = b.row_stride;
      panel.c = static_cast<float*>(c.data) + batch * c.batch_stride + row * c.row_stride;
      panel.ldc = c.row_stride;
      panel.scratch = scratch_.data() + worker * g.n * g.k;
      direct_product(panel);
    });
  }

  AttentionProblem p_;
  CachingAllocator allocator_{Device::cpu()};
  Context context_{StreamView{}, &allocator_};
  Tensor q_, k_, v_, o_, d_o_, dq_, dk_, dv_, lse_;
  std::unique_ptr<Saved> saved_;
  std::vector<std::vector<float>> right_;
  std::vector<float> scratch_;
};

void measure(const AttentionProblem& problem, int rounds, const std::vector<Variant>& chosen) {
  Backward backward(problem);
  struct Samples {
    std::vector<double> phases[kPhaseCount], total;
  };
  std::vector<Samples> samples(chosen.size());
  std::vector<double> whole;
  std::vector<double> differences;
  for (int round = -2; round < rounds; ++round) {
    const double begin = now_ms();
    backward.naive_backward();
    if (round >= 0) whole.push_back(now_ms() - begin);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      Samples warm;
      if (round == -2) backward.poison();
      // A run of its own first: the caches are then as the variant itself leaves them.
      backward.run(chosen[i], warm.phases);
      if (round == -2) differences.push_back(backward.difference());
      Samples& s = round < 0 ? warm : samples[i];
      backward.run(chosen[i], s.phases);
      double total = 0;
      for (const auto& phase : s.phases) total += phase.back();
      s.total.push_back(total);
    }
  }
  std::printf(
      "\nbatch %lld, N %lld, d %lld, %d threads, %s, OpenBLAS %s; naive's backward itself: median %.3f ms, best %.3f\n",
      static_cast<long long>(problem.batch), static_cast<long long>(problem.seq_len),
      static_cast<long long>(problem.head_dim), num_threads(), std::string(name(cpu_isa())).c_str(),
      openblas_get_corename(), median(whole), *std::min_element(whole.begin(), whole.end()));
  std::vector<double> empty;
  for (int i = 0; i < 200; ++i) {
    const double begin = now_ms();
    parallel_workers([](int, int) {});
    empty.push_back(now_ms() - begin);
  }
  std::printf("a parallel region with nothing in it: %.4f ms; a score matrix: %.1f MiB\n", median(empty),
              static_cast<double>(Scores::bytes(problem)) / (1 << 20));
  std::printf("%-15s", "variant");
  for (const char* phase : kPhases) std::printf(" %8s", phase);
  std::printf(" %8s %8s %8s %9s\n", "total", "best", "GFLOP/s", "off");
  const double flops = 8.0 * static_cast<double>(problem.batch * problem.seq_len * problem.kv_len * problem.head_dim);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::printf("%-15s", chosen[i].name.c_str());
    double products = 0;
    for (int phase = 0; phase < kPhaseCount; ++phase) {
      const double ms = median(samples[i].phases[phase]);
      if (phase < 2 || phase > 4) products += ms;
      std::printf(" %8.3f", ms);
    }
    std::printf(" %8.3f %8.3f %8.1f %9.1e\n", median(samples[i].total),
                *std::min_element(samples[i].total.begin(), samples[i].total.end()), flops / products / 1e6,
                differences[i]);
  }
  std::fflush(stdout);
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"--threads", "0"}, {"--lengths", "256,512"}, {"--dims", "128"},
                                                {"--batch", "8"},   {"--rounds", "60"},       {"--variants", ""},
                                                {"--clock", "wall"}};
  for (int i = 1; i < argc; i += 2) {
    if (options.count(argv[i]) == 0 || i + 1 == argc) {
      std::fprintf(stderr, "naive_cpu_bench: unknown option or no value: %s\n", argv[i]);
      return 2;
    }
    options[argv[i]] = argv[i + 1];
  }
  if (std::atoi(options["--threads"].c_str()) > 0) set_num_threads(std::atoi(options["--threads"].c_str()));
  by_cpu_time = options["--clock"] == "cpu";
  std::vector<Variant> chosen;
  const std::vector<std::string> names = words(options["--variants"]);
  for (const Variant& variant : variants()) {
    if (names.empty() || std::find(names.begin(), names.end(), variant.name) != names.end()) chosen.push_back(variant);
  }
  for (const std::string& dim : words(options["--dims"])) {
    for (const std::string& length : words(options["--lengths"])) {
      AttentionProblem problem;
      problem.batch = std::atoll(options["--batch"].c_str());
      problem.num_heads = problem.num_kv_heads = 1;
      problem.seq_len = problem.kv_len = std::atoll(length.c_str());
      problem.head_dim = std::atoll(dim.c_str());
      if (problem.batch < 1 || problem.seq_len < 16 || problem.seq_len % 16 != 0 || problem.head_dim < 16 ||
          problem.head_dim % 16 != 0 || chosen.empty()) {
        std::fprintf(stderr,
                     "naive_cpu_bench: lengths and dims are multiples of 16, variants those listed without any\n");
        return 2;
      }
      measure(problem, std::atoi(options["--rounds"].c_str()), chosen);
    }
  }
  return 0;
}

}  // namespace
}  // namespace warpmeter::attention::dev

int main(int argc, char** argv) {
  return warpmeter::attention::dev::run(argc, argv);
}
