#include "tests/kernels/attention/conformance.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include <sys/mman.h>

#include "kernels/attention/verify.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tests/kernels/attention/operands.hpp"

namespace warpmeter::attention::conformance {

namespace {

constexpr std::pair<std::int64_t, std::int64_t> kFlashAttentionLengths[] = {
    {1, 1},     {1, 2},     {2, 1},     {3, 1},     {239, 1},     {3, 799},     {799, 3},
    {113, 203}, {128, 217}, {108, 256}, {256, 512}, {1023, 1024}, {1024, 1023}, {2048, 2048}};
// 192 and 64 leave half a tile of 128; 63 and 65 stand beside one of 64.
constexpr std::int64_t kLengths[] = {1, 2, 3, 17, 63, 64, 65, 127, 192, 250, 1000};
constexpr std::int64_t kHeadDims[] = {1, 16, 40, 63, 64, 80, 96, 128, 256};
constexpr DType kTypes[] = {DType::fp32, DType::tf32, DType::bf16, DType::fp16};
constexpr std::pair<std::int64_t, std::int64_t> kHeads[] = {{1, 1}, {4, 2}, {4, 1}, {4, 4}};

std::vector<std::pair<std::int64_t, std::int64_t>> all_lengths() {
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const std::int64_t n : kLengths) lengths.emplace_back(n, n);
  lengths.insert(lengths.end(), std::begin(kFlashAttentionLengths), std::end(kFlashAttentionLengths));
  return lengths;
}

AttentionProblem make_problem(std::int64_t batch, std::pair<std::int64_t, std::int64_t> heads,
                              std::pair<std::int64_t, std::int64_t> lengths, std::int64_t head_dim, DType dtype,
                              bool causal) {
  AttentionProblem p;
  p.batch = batch;
  std::tie(p.num_heads, p.num_kv_heads) = heads;
  std::tie(p.seq_len, p.kv_len) = lengths;
  p.head_dim = head_dim;
  p.dtype = dtype;
  p.causal = causal;
  return p;
}

bool supported(const Subject& subject, const AttentionProblem& problem) {
  return !subject.implementation().unsupported(problem, Pass::forward) &&
         !subject.implementation().unsupported(problem, Pass::backward);
}

bool supported(const Subject& subject, const Case& c) {
  if (c.fp32_scores && subject.implementation().score_precision() != ScorePrecision::fp32) return false;
  return supported(subject, c.problem);
}

testing::AssertionResult failed(const Case& c) {
  return testing::AssertionFailure() << describe(c) << ": ";
}

}  // namespace

std::string describe(const Case& c) {
  std::string text = attention::describe(c.problem);
  text += c.layout == Layout::bhsd ? "" : c.layout == Layout::bshd ? " bshd" : " padded";
  switch (c.values) {
    case Values::normal:
      break;
    case Values::infinite_key:
      text += " infinite key";
      break;
    case Values::nan_query:
      text += " nan query";
      break;
    case Values::inexact_scores:
      text += " inexact scores";
      break;
    case Values::large_scores:
      text += " large scores";
      break;
    case Values::negative_lse:
      text += " negative lse";
      break;
    case Values::very_negative:
      text += " very negative scores";
      break;
  }
  return text;
}

Subject::Subject(DeviceKind kind, std::string_view implementation)
    : implementation_(find_implementation(kind, implementation)) {
  if (kind == DeviceKind::cuda && cuda_device_count() == 0) {
    missing_ = "no CUDA device: " + cuda_unavailable_reason();
    return;
  }
  if (implementation_ == nullptr) throw std::invalid_argument("no implementation " + std::string(implementation));
  const Device device = kind == DeviceKind::cpu ? Device::cpu() : Device::cuda();
  stream_ = std::make_unique<Stream>(device);
  allocator_ = std::make_unique<CachingAllocator>(device);
}

Subject::Subject(const Implementation& implementation) : implementation_(&implementation) {
  if (implementation.device_kind() == DeviceKind::cuda && cuda_device_count() == 0) {
    missing_ = "no CUDA device: " + cuda_unavailable_reason();
    return;
  }
  const Device device = implementation.device_kind() == DeviceKind::cpu ? Device::cpu() : Device::cuda();
  stream_ = std::make_unique<Stream>(device);
  allocator_ = std::make_unique<CachingAllocator>(device);
}

std::vector<Case> length_cases(Extent extent) {
  std::vector<Case> cases;
  if (extent == Extent::thinned) {
    for (const auto& lengths : all_lengths()) {
      for (const bool causal : {true, false}) {
        if (lengths.first >= 1000 && !causal) continue;
        for (const DType dtype : kTypes) {
          if (lengths.first * lengths.second > 100'000 && dtype != DType::fp32) continue;
          cases.push_back({make_problem(1, {1, 1}, lengths, 64, dtype, causal)});
        }
      }
    }
    return cases;
  }
  std::size_t turn = 0;
  for (const auto& lengths : all_lengths()) {
    for (const std::int64_t dim : kHeadDims) {
      for (const DType dtype : kTypes) {
        for (const bool causal : {true, false}) {
          const auto& heads = kHeads[turn++ % std::size(kHeads)];
          const Layout layout = turn % 3 == 0 ? Layout::padded : turn % 3 == 1 ? Layout::bhsd : Layout::bshd;
          cases.push_back(
              {make_problem(turn % 5 == 0 ? 2 : 1, heads, lengths, dim, dtype, causal), layout, Values::normal, 1e9});
        }
      }
    }
  }
  return cases;
}

std::vector<Case> head_dim_cases() {
  std::vector<Case> cases;
  for (const std::int64_t dim : kHeadDims) {
    for (const DType dtype : kTypes) {
      cases.push_back({make_problem(1, {2, 2}, {65, 127}, dim, dtype, true)});
      cases.push_back({make_problem(1, {1, 1}, {130, 70}, dim, dtype, false)});
    }
  }
  return cases;
}

std::vector<Case> group_cases() {
  std::vector<Case> cases;
  for (const auto& heads : kHeads) {
    for (const DType dtype : kTypes) {
      for (const bool causal : {true, false}) {
        cases.push_back({make_problem(2, heads, {63, 130}, 40, dtype, causal)});
        cases.push_back({make_problem(2, heads, {100, 37}, 64, dtype, causal)});
      }
    }
  }
  return cases;
}

std::vector<Case> layout_cases() {
  std::vector<Case> cases;
  for (const Layout layout : {Layout::bshd, Layout::padded}) {
    for (const DType dtype : kTypes) {
      for (const bool causal : {true, false}) {
        cases.push_back({make_problem(2, {4, 2}, {127, 250}, 64, dtype, causal), layout});
        cases.push_back({make_problem(2, {3, 3}, {65, 33}, 40, dtype, causal), layout});
        cases.push_back({make_problem(1, {2, 1}, {1, 1}, 16, dtype, causal), layout});
      }
    }
  }
  return cases;
}

std::vector<Case> value_cases() {
  std::vector<Case> cases;
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t length : {64, 192, 250}) {
        cases.push_back(
            {make_problem(1, {2, 1}, {length, length}, 64, dtype, causal), Layout::padded, Values::negative_lse});
      }
      cases.push_back({make_problem(1, {1, 1}, {150, 170}, 16, dtype, causal), Layout::padded, Values::large_scores});
      cases.push_back({make_problem(1, {1, 1}, {150, 170}, 16, dtype, causal), Layout::padded, Values::very_negative});
      cases.push_back({make_problem(1, {1, 1}, {170, 50}, 16, dtype, causal), Layout::padded, Values::very_negative});
      if (!is_16bit(dtype)) continue;
      // What is exact at head dim 16 is not elsewhere: scales that round, and scores that grow to 4e4.
      for (const std::int64_t dim : {32, 80, 256}) {
        for (const Values values : {Values::large_scores, Values::very_negative, Values::inexact_scores}) {
          cases.push_back({make_problem(1, {1, 1}, {150, 170}, dim, dtype, causal), Layout::padded, values, 4e9, true});
        }
      }
    }
  }
  return cases;
}

namespace {

/// What each output uses of its bound, at most, over several cases.
using Shares = std::map<std::string, double>;

testing::AssertionResult run_supported(const Subject& subject, const Case& c, Shares& shares) {
  Operands operands(subject, c);
  const std::size_t before = subject.allocator().stats().current.allocated;
  operands.execute();
  const std::size_t after = subject.allocator().stats().current.allocated;
  if (after != before) return failed(c) << after - before << " bytes were not given back";
  const HostCopies host = operands.outputs();
  if (std::string where = host.overwritten(); !where.empty()) return failed(c) << "written outside " << where;
  // On a busy machine threads that wait for each other cost small references more than they bring.
  const int threads = num_threads();
  const double work = static_cast<double>(c.problem.batch * c.problem.num_heads * c.problem.visible_pairs()) *
                      static_cast<double>(c.problem.head_dim);
  if (work < 2e7) set_num_threads(1);
  const Verifier verifier = operands.verifier(c.work_budget);
  const CheckReport report = verifier.check(host.outputs());
  set_num_threads(threads);
  for (const OutputCheck& check : report.outputs) {
    double& share = shares[check.output];
    share = std::max(share, check.tolerance > 0 ? check.max_error / check.tolerance : 0.0);
  }
  if (report.outputs.size() != 5) return failed(c) << report.outputs.size() << " outputs were checked";
  if (!report.passed()) return failed(c) << report.failure();
  return testing::AssertionSuccess();
}

}  // namespace

testing::AssertionResult run(const Subject& subject, const Case& c) {
  Shares shares;
  return supported(subject, c) ? run_supported(subject, c, shares) : testing::AssertionSuccess();
}

void run_all(const Subject& subject, const std::vector<Case>& cases) {
  int ran = 0;
  std::map<DType, Shares> shares;
  for (const Case& c : cases) {
    if (!supported(subject, c)) continue;
    ++ran;
    EXPECT_TRUE(run_supported(subject, c, shares[c.problem.dtype]));
  }
  EXPECT_GT(ran, 0) << "nothing in the list is supported";
  for (const auto& [dtype, of_outputs] : shares) {
    for (const auto& [output, share] : of_outputs) {
      testing::Test::RecordProperty(std::string(name(dtype)) + "_" + output, std::to_string(share));
    }
  }
}

void check_unseeing_queries(const Subject& subject) {
  for (const DType dtype : kTypes) {
    // In tiles of their own, in tiles with others, one alone, and all but one.
    for (const auto& lengths : {std::pair<std::int64_t, std::int64_t>{330, 50}, {130, 70}, {66, 65}, {70, 1}}) {
      for (const std::int64_t dim : {40, 64}) {
        const Case c{make_problem(2, {4, 2}, lengths, dim, dtype, true), Layout::padded, Values::infinite_key};
        if (!supported(subject, c)) continue;
        Operands operands(subject, c);
        operands.execute();
        const HostCopies host = operands.outputs();
        EXPECT_EQ(host.overwritten(), "") << describe(c);
        const std::int64_t unseeing = c.problem.unseeing_queries();
        EXPECT_EQ(unseeing, lengths.first - lengths.second);
        const std::vector<float> zeros(static_cast<std::size_t>(dim), 0.0f);
        const std::vector<float> nothing(1, -std::numeric_limits<float>::infinity());
        for (std::int64_t head = 0; head < 2 * 4; ++head) {
          for (std::int64_t row = 0; row < unseeing; ++row) {
            ASSERT_EQ(host.query_row(0, head / 4, head % 4, row), zeros) << describe(c) << ": o of row " << row;
            ASSERT_EQ(host.query_row(1, head / 4, head % 4, row), nothing) << describe(c) << ": lse of row " << row;
            ASSERT_EQ(host.query_row(2, head / 4, head % 4, row), zeros) << describe(c) << ": dq of row " << row;
          }
        }
      }
    }
  }
}

void check_nan_shows(const Subject& subject) {
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t dim : {40, 64}) {
        const Case c{make_problem(1, {2, 2}, {100, 70}, dim, dtype, causal), Layout::padded, Values::nan_query};
        if (!supported(subject, c)) continue;
        Operands operands(subject, c);
        operands.execute();
        const HostCopies host = operands.outputs();
        for (std::int64_t row = 0; row < c.problem.seq_len; ++row) {
          for (const int output : {0, 1, 2}) {
            for (const float x : host.query_row(output, 0, 1, row)) {
              ASSERT_EQ(std::isnan(x), row == c.problem.seq_len - 1)
                  << describe(c) << ": " << x << " in row " << row << " of output " << output;
            }
          }
        }
      }
    }
  }
}

void check_same_bits(const Subject& subject) {
  const int threads = num_threads();
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      Case c{make_problem(2, {4, 2}, {250, 310}, 64, dtype, causal)};
      c.problem.deterministic = true;
      if (!supported(subject, c.problem)) continue;
      Operands operands(subject, c);
      operands.execute();
      const HostCopies first = operands.outputs();
      for (const int count : {1, 2, 3, 5}) {
        if (subject.implementation().device_kind() == DeviceKind::cpu) set_num_threads(count);
        operands.execute();
        EXPECT_EQ(first.difference(operands.outputs()), "") << describe(c) << " with " << count << " threads";
      }
      set_num_threads(threads);
      operands.poison_outputs();
      EXPECT_EQ(operands.forward(false), nullptr);
      EXPECT_EQ(first.difference(operands.outputs(), true), "") << describe(c) << " without a backward to come";
    }
  }
}

void check_memory_plan(const Subject& subject) {
  const Implementation& implementation = subject.implementation();
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      for (const auto& lengths : {std::pair<std::int64_t, std::int64_t>{3, 5}, {250, 311}}) {
        const Case c{make_problem(2, {4, 2}, lengths, 40, dtype, causal)};
        if (!supported(subject, c.problem)) continue;
        SCOPED_TRACE(describe(c));
        Operands operands(subject, c);
        const auto taken = [&](auto&& work) {
          const std::size_t before = subject.allocator().stats().current.allocated;
          subject.allocator().reset_peak();
          work();
          return subject.allocator().stats().peak.allocated - before;
        };
        const std::size_t before = subject.allocator().stats().current.allocated;
        const MemoryPlan forward_only = implementation.memory_plan(c.problem, false);
        EXPECT_EQ(taken([&] { EXPECT_EQ(operands.forward(false), nullptr); }), forward_only.forward_peak);
        EXPECT_EQ(forward_only.saved, 0U);
        EXPECT_EQ(forward_only.backward_peak, 0U);

        const MemoryPlan plan = implementation.memory_plan(c.problem, true);
        std::unique_ptr<Saved> saved;
        EXPECT_EQ(taken([&] { saved = operands.forward(true); }), plan.forward_peak);
        EXPECT_EQ(subject.allocator().stats().current.allocated - before, plan.saved);
        EXPECT_EQ(taken([&] { operands.backward(saved.get()); }) + plan.saved, plan.backward_peak);
        EXPECT_EQ(subject.allocator().stats().current.allocated - before, plan.saved);
        operands.backward(saved.get());  // may be repeated
        saved.reset();
        EXPECT_EQ(subject.allocator().stats().current.allocated, before);
      }
    }
  }
}

void check_out_of_memory(const Subject& subject) {
  const Case c{make_problem(2, {4, 2}, {600, 700}, 64, DType::fp32, true)};
  ASSERT_TRUE(supported(subject, c.problem));
  CachingAllocator& allocator = subject.allocator();
  Operands operands(subject, c);
  const MemoryPlan plan = subject.implementation().memory_plan(c.problem, true);
  const std::size_t held = allocator.stats().current.allocated;
  const auto shut = [&] {  // nothing more than what is in segments already
    allocator.empty_cache();
    allocator.set_memory_limit(allocator.stats().current.reserved);
    return allocator.stats().current.reserved - allocator.stats().current.allocated;
  };
  if (plan.forward_peak > shut()) {
    EXPECT_THROW(static_cast<void>(operands.forward(true)), OutOfMemory);
    EXPECT_EQ(allocator.stats().current.allocated, held);
  }
  allocator.set_memory_limit(0);
  const std::unique_ptr<Saved> saved = operands.forward(true);
  if (plan.backward_peak - plan.saved > shut()) {
    EXPECT_THROW(operands.backward(saved.get()), OutOfMemory);
    EXPECT_EQ(allocator.stats().current.allocated, held + plan.saved);
  }
  allocator.set_memory_limit(0);
  operands.backward(saved.get());
  const HostCopies host = operands.outputs();
  EXPECT_TRUE(operands.verifier(4e9).check(host.outputs()).passed());
}

void check_wide_strides(const Subject& subject) {
  if (subject.implementation().device_kind() != DeviceKind::cpu) GTEST_SKIP() << "host memory only";
  const Case c{make_problem(2, {2, 2}, {33, 40}, 16, DType::fp32, true)};
  ASSERT_TRUE(supported(subject, c.problem));
  // A 32-bit offset would land on another row of the same operand.
  constexpr std::int64_t kBatchStride = (std::int64_t{1} << 32) + 64, kHeadStride = (std::int64_t{1} << 31) + 4096;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kBatchStride + kHeadStride + 4096) * sizeof(float);
  struct Mapping {
    void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ~Mapping() {
      if (data != MAP_FAILED) munmap(data, kBytes);
    }
  } maps[8];
  for (const Mapping& map : maps) {
    if (map.data == MAP_FAILED) GTEST_SKIP() << "no address space for sparse operands";
  }
  constexpr std::int64_t kRows = 40;
  const AttentionProblem& p = c.problem;
  Operand wide[8];
  for (int i = 0; i < 8; ++i) wide[i] = {maps[i].data, kBatchStride, kHeadStride, p.head_dim};
  const Operand &q = wide[0], &k = wide[1], &v = wide[2], &d_o = wide[3], &o = wide[4];
  for (int i = 0; i < 4; ++i) {
    const Tensor values = normal_values(p.batch * p.num_heads * kRows * p.head_dim, static_cast<std::uint64_t>(i));
    const float* next = values.data_as<float>();
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.num_heads; ++h) {
        std::copy_n(next, kRows * p.head_dim, wide[i].row<float>(b, h, 0));
        next += kRows * p.head_dim;
      }
    }
  }
  std::vector<float> lse(static_cast<std::size_t>(p.lse_elements()));
  const auto saved = subject.implementation().forward(subject.context(), p,
                                                      {as_const(q), as_const(k), as_const(v), o, lse.data()}, true);
  subject.implementation().backward(
      subject.context(), p,
      {as_const(q), as_const(k), as_const(v), as_const(o), as_const(d_o), lse.data(), wide[5], wide[6], wide[7]},
      saved.get());
  const Verifier verifier(p, subject.implementation().score_precision(), as_const(q), as_const(k), as_const(v),
                          as_const(d_o), 1);
  const CheckReport report =
      verifier.check({as_const(o), lse.data(), as_const(wide[5]), as_const(wide[6]), as_const(wide[7])});
  EXPECT_TRUE(report.passed()) << report.failure();
}

void check_concurrent_calls(const Subject& subject) {
  if (subject.implementation().device_kind() != DeviceKind::cpu) GTEST_SKIP() << "work is ordered by the stream";
  const Case c{make_problem(1, {2, 2}, {150, 150}, 64, DType::fp32, true)};
  ASSERT_TRUE(supported(subject, c.problem));
  Operands first(subject, c), second(subject, c);
  first.execute();
  const HostCopies expected = first.outputs();
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) second.execute();
  });
  for (int i = 0; i < 3; ++i) first.execute();
  other.join();
  EXPECT_EQ(expected.difference(first.outputs()), "");
  EXPECT_EQ(expected.difference(second.outputs()), "");
}

void check_refusals(const Subject& subject) {
  const Implementation& implementation = subject.implementation();
  const AttentionProblem good = make_problem(1, {2, 1}, {8, 8}, 16, DType::fp32, true);
  const auto reason = [&](auto change) {
    AttentionProblem p = good;
    change(p);
    return implementation.unsupported(p, Pass::forward).value_or("");
  };
  EXPECT_EQ(reason([](AttentionProblem& p) { p.num_kv_heads = 3; }), "num_kv_heads (3) must divide num_heads (2)");
  EXPECT_NE(reason([](AttentionProblem& p) { p.head_dim = 257; }), "");
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len = 0; }), "");
  EXPECT_NE(reason([](AttentionProblem& p) { p.dtype = DType::fp64; }), "");
  // What --list says about types is what is refused and what is not.
  for (const DType dtype : kTypes) {
    const std::string listed = "," + std::string(implementation.dtypes()) + ",";
    const bool has = listed.find("," + std::string(name(dtype)) + ",") != std::string::npos;
    EXPECT_EQ(reason([&](AttentionProblem& p) { p.dtype = dtype; }).empty(), has) << name(dtype);
  }
}

}  // namespace warpmeter::attention::conformance
