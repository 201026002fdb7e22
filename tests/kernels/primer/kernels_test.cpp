// The primer's kernels on the CPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tests/kernels/primer/cases.hpp"

namespace warpmeter::primer {
namespace {

class Cpu {
 public:
  [[nodiscard]] Context context() { return {StreamView{Device::cpu()}, &allocator_}; }

 private:
  CachingAllocator allocator_{Device::cpu()};
};

class EveryKernel : public testing::TestWithParam<std::string_view> {
 protected:
  const Kernel& kernel_ = *find_kernel(GetParam());
  Cpu cpu_;
};

TEST_P(EveryKernel, IsRightForAllSizesAndTypes) {
  for (const Problem& problem : problems_of(kernel_, false)) {
    EXPECT_EQ(run_and_check(cpu_.context(), kernel_, problem), "") << describe(kernel_, problem);
  }
}

TEST_P(EveryKernel, IsRightWhereStoresGoPastTheCache) {
  // Larger than the last-level cache, so that stores go past it, and rows that begin at any address.
  const auto cache = static_cast<std::int64_t>(properties(Device::cpu()).last_level_cache_bytes);
  if (cache > (std::int64_t{64} << 20)) GTEST_SKIP() << "the cache is too large for a quick test";
  Problem problem{.rows = cache / 4 / 1003 + 3, .cols = 1003};
  if (kernel_.matrix_product || kernel_.outputs(problem)[0].elements() < problem.rows * problem.cols) {
    GTEST_SKIP() << "its results are few";
  }
  EXPECT_EQ(run_and_check(cpu_.context(), kernel_, problem), "");
  problem.dtype = DType::bf16;
  problem.rows *= 2;
  EXPECT_EQ(run_and_check(cpu_.context(), kernel_, problem), "");
}

TEST_P(EveryKernel, GivesTheSameBitsOnEveryRun) {
  Problem problem = problems_of(kernel_, false)[9];
  EXPECT_EQ(result_bytes(cpu_.context(), kernel_, problem), result_bytes(cpu_.context(), kernel_, problem));
}

TEST_P(EveryKernel, IsRightWithManyThreads) {
  const int before = num_threads();
  set_num_threads(7);
  for (const std::size_t index : {std::size_t{0}, std::size_t{3}, std::size_t{9}}) {
    const Problem problem = problems_of(kernel_, false)[index];
    EXPECT_EQ(run_and_check(cpu_.context(), kernel_, problem), "") << describe(kernel_, problem);
  }
  set_num_threads(before);
}

TEST_P(EveryKernel, RefusesSizesThatAreNone) {
  for (const Size size : kernel_.sizes) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 62}) {
      Problem problem = kernel_.notes;
      problem.set(size, value);
      EXPECT_NE(invalid_reason(kernel_, problem), "") << name(size) << " " << value;
      EXPECT_THROW(run(kernel_, problem, {}, StreamView{Device::cpu()}), CheckError);
    }
  }
  Problem problem = kernel_.notes;
  EXPECT_EQ(invalid_reason(kernel_, problem), "");
  problem.dtype = DType::int32;
  EXPECT_THROW(run(kernel_, problem, {}, StreamView{Device::cpu()}), CheckError);
}

TEST_P(EveryKernel, SaysWhatItIs) {
  EXPECT_FALSE(kernel_.formula.empty());
  EXPECT_FALSE(kernel_.layout.empty());
  EXPECT_TRUE(kernel_.pass == "fwd" || kernel_.pass == "bwd");
  for (const Problem& problem : {kernel_.bench, kernel_.notes}) {
    EXPECT_EQ(invalid_reason(kernel_, problem), "");
    EXPECT_GT(kernel_.flops(problem), 0);
    EXPECT_GT(kernel_.bytes(problem), 0);
  }
  EXPECT_LE(kernel_.bytes(kernel_.notes), 1 << 20);
  const std::size_t before_rounding = operand_bytes(kernel_, kernel_.notes, Device::cpu());
  EXPECT_GE(static_cast<double>(before_rounding), kernel_.bytes(kernel_.notes));
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Kernel& kernel : kernels()) all.push_back(kernel.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Primer, EveryKernel, testing::ValuesIn(names()),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Registry, FindsKernelsByName) {
  EXPECT_EQ(find_kernel("add")->name, "add");
  EXPECT_EQ(find_kernel("ad"), nullptr);
  std::vector<std::string_view> all = names();
  EXPECT_GE(all.size(), 14u);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

constexpr const char* kSoftmaxes[] = {"softmax_three_pass", "softmax_online", "softmax_one_read"};

/// The last result of a kernel for inputs given by hand, fp32.
std::vector<float> results_of(std::string_view name, const Problem& problem,
                              const std::vector<std::vector<float>>& in) {
  const Kernel& kernel = *find_kernel(name);
  std::vector<std::vector<float>> out;
  const std::size_t bytes = kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(problem, Device::cpu());
  std::vector<float> workspace(bytes / sizeof(float));
  Arguments arguments;
  for (std::size_t i = 0; i < in.size(); ++i) arguments.in[i] = in[i].data();
  for (const TensorSpec& spec : kernel.outputs(problem)) out.emplace_back(spec.elements(), -1.0f);
  for (std::size_t i = 0; i < out.size(); ++i) arguments.out[i] = out[i].data();
  arguments.workspace = workspace.data();
  run(kernel, problem, arguments, StreamView{Device::cpu()});
  return out.back();
}

// Figures worked out by hand, so that no mistake that code and reference share goes unseen.
TEST(ByHand, Sums) {
  const Problem p{.rows = 2, .cols = 3};
  EXPECT_EQ(results_of("add", p, {{1, 2, 3, 4, 5, 6}}), (std::vector<float>{11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(results_of("outer_add", p, {{1, 2, 3}, {10, 20}}), (std::vector<float>{11, 12, 13, 21, 22, 23}));
  EXPECT_EQ(results_of("outer_mul_relu", p, {{1, -2, 3}, {10, -20}}), (std::vector<float>{10, 0, 30, 0, 40, 0}));
  EXPECT_EQ(results_of("outer_mul_relu_backward", p, {{1, -2, 3, -4, 5, 0}, {10, -1}, {1, 2, 3, 4, 5, 6}}),
            (std::vector<float>{10, 0, 30, -4, 0, 0}));
  EXPECT_EQ(results_of("row_sum", p, {{1, 2, 3, 4, 5, 6}}), (std::vector<float>{6, 15}));
  EXPECT_EQ(results_of("weighted_sum", p, {{1, 2, 3, 4, 5, 6}, {1, 10, 100}}), (std::vector<float>{321, 654}));
  EXPECT_EQ(results_of("weighted_sum_backward", p, {{1, 2, 3, 4, 5, 6}, {1, 10, 100}, {2, 3}}),
            (std::vector<float>{14, 19, 24}));  // dw
}

TEST(ByHand, SoftmaxAndAttention) {
  const float log3 = std::log(3.0f);
  for (const char* name : kSoftmaxes) {
    const auto y = results_of(name, {.rows = 1, .cols = 2}, {{5.0f, 5.0f + log3}});
    EXPECT_NEAR(y[0], 0.25f, 1e-6f) << name;
    EXPECT_NEAR(y[1], 0.75f, 1e-6f) << name;
    // A row that begins low: what was summed before the maximum came has to shrink. And scores that no exp could take.
    const auto rising = results_of(name, {.rows = 1, .cols = 40}, [] {
      std::vector<float> x(40);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1000.0f * static_cast<float>(i);
      return std::vector<std::vector<float>>{x};
    }());
    EXPECT_EQ(rising[39], 1.0f) << name;
    EXPECT_EQ(rising[38], 0.0f) << name;
    const float infinity = std::numeric_limits<float>::infinity();
    const auto masked = results_of(name, {.rows = 1, .cols = 3}, {{-infinity, 2.0f, -infinity}});
    EXPECT_EQ(masked, (std::vector<float>{0, 1, 0})) << name;
  }
  // Weights 1/4 and 3/4 of the values.
  const auto y = results_of("scalar_attention", {.rows = 1, .cols = 2}, {{2.0f}, {0.0f, log3 / 2}, {8.0f, 16.0f}});
  EXPECT_NEAR(y[0], 14.0f, 1e-5f);
}

TEST(ByHand, SoftmaxOfRowsWhoseMaximumComesLate) {
  // Longer than the tiles that have a maximum of their own, and several rows, each shifted by its number.
  const std::int64_t rows = 5, cols = 20000;
  std::vector<float> x;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < cols; ++i)
      x.push_back(static_cast<float>(row + i % 7) + static_cast<float>(i) * 1e-3f);
  }
  for (const char* name : kSoftmaxes) {
    const auto y = results_of(name, {.rows = rows, .cols = cols}, {x});
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const of_row = x.data() + row * cols;
      double sum = 0;
      for (std::int64_t i = 0; i < cols; ++i) sum += std::exp(double{of_row[i]} - row - 26);
      for (std::int64_t i = 0; i < cols; ++i) {
        const double expected = std::exp(double{of_row[i]} - row - 26) / sum;
        ASSERT_NEAR(y[row * cols + i], expected, 3e-6 * expected) << name << " " << row << " " << i;
      }
    }
  }
}

/// Results of a kernel with one operand, 16 bits.
std::vector<std::uint16_t> bits_of(std::string_view name, const Problem& problem, const std::vector<std::uint16_t>& x) {
  const Kernel& kernel = *find_kernel(name);
  const std::size_t bytes = kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(problem, Device::cpu());
  std::vector<float> workspace(bytes / sizeof(float));
  std::vector<std::uint16_t> out(x.size());
  run(kernel, problem, {{x.data()}, {out.data()}, workspace.data()}, StreamView{Device::cpu()});
  return out;
}

TEST(ByHand, SoftmaxFindsTheMaximumOfNegativeHalves) {
  struct Halves {
    DType dtype;
    std::uint16_t low, high, infinite, one;  // -300, -200, -infinity, 1
  };
  for (const Halves& h :
       {Halves{DType::bf16, 0xC396, 0xC348, 0xFF80, 0x3F80}, Halves{DType::fp16, 0xDCB0, 0xDA40, 0xFC00, 0x3C00}}) {
    const Problem problem{.dtype = h.dtype, .rows = 1, .cols = 200};
    for (const char* name : kSoftmaxes) {
      for (std::size_t place = 0; place < 200; ++place) {
        for (const std::uint16_t others : {h.low, h.infinite}) {
          std::vector<std::uint16_t> x(200, others), expected(200, 0);
          x[place] = h.high;
          expected[place] = h.one;
          ASSERT_EQ(bits_of(name, problem, x), expected) << name << " " << place << " " << others;
        }
      }
    }
  }
}

/// Scores that softmaxes find hard, as bits of `dtype`: kind 0 lies around 0, 1 around -1e4, 2 has 1e4 of either sign,
/// 3 rises throughout by what makes each the new maximum, 4 is masked but for a few, 5 as large as they may be, 6
/// alike, 7 so far apart that the least become nearly nothing, 8 lies around 6e4.
std::vector<std::uint32_t> hard_scores(DType dtype, int kind, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint32_t> all;
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    state = state * 1664525u + 1013904223u;
    const float spread = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-29f;  // -4 to 4
    const float largest = dtype == DType::fp16 ? 6e4f : 1e38f;
    const float values[] = {spread,
                            -1e4f + 8 * spread,
                            spread < 0 ? -1e4f : 1e4f,
                            static_cast<float>(i % cols) * 0.75f - 300.0f,
                            i % cols % 37 == 5 ? spread : -std::numeric_limits<float>::infinity(),
                            spread < 2 ? -largest : largest,
                            -7.5f,
                            9.99f * spread,
                            6e4f + 8 * spread};
    const float value = values[kind];
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if (dtype == DType::bf16) bits >>= 16;
    if (dtype == DType::fp16) {  // normal numbers, zero and infinity, cut off
      const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 16 & 0x8000u;
      bits = sign | (magnitude < 0x38800000u ? 0 : std::isinf(value) ? 0x7C00 : (magnitude - 0x38000000u) >> 13);
    }
    all.push_back(bits);
  }
  return all;
}

TEST(ByHand, SoftmaxOfHardScoresIsRight) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    // Off every vector's and tile's border, and on them.
    for (const std::int64_t cols : {6, 31, 64, 67, 2048, 2081, 8191, 8192, 8257, 20001}) {
      for (int kind = 0; kind < 9; ++kind) {
        const Problem p{.dtype = dtype, .rows = 3, .cols = cols};
        const auto bits = hard_scores(dtype, kind, p.rows, cols);
        const std::vector<std::uint16_t> halves(bits.begin(), bits.end());
        const void* const x = dtype == DType::fp32 ? static_cast<const void*>(bits.data()) : halves.data();
        for (const char* name : kSoftmaxes) {
          const Kernel& kernel = *find_kernel(name);
          const std::size_t bytes = kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(p, Device::cpu());
          std::vector<float> workspace(bytes / sizeof(float)), out(static_cast<std::size_t>(p.rows * cols), NAN);
          run(kernel, p, {{x}, {out.data()}, workspace.data()}, StreamView{Device::cpu()});
          EXPECT_EQ(check(kernel, p, {{x, dtype}}, {{out.data(), dtype}}, 1e6).failure, "")
              << name << " " << describe(kernel, p) << " kind " << kind;
        }
      }
    }
  }
}

TEST(ByHand, SoftmaxIsTheSameWhereverItsResultsLie) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const Problem p{.dtype = dtype, .rows = 4, .cols = 2048};  // whole pages: as far apart in each row
    const std::vector<std::uint32_t> bits = hard_scores(dtype, 0, p.rows, p.cols);
    const std::vector<std::uint16_t> halves(bits.begin(), bits.end());
    const std::size_t size = static_cast<std::size_t>(p.rows * p.cols) * (dtype == DType::fp32 ? 4 : 2);
    constexpr std::size_t kPage = 4096;
    std::vector<char> memory(2 * size + 4 * kPage);
    char* const x = memory.data() + (kPage - reinterpret_cast<std::uintptr_t>(memory.data()) % kPage);
    std::memcpy(x, dtype == DType::fp32 ? static_cast<const void*>(bits.data()) : halves.data(), size);
    for (const char* name : kSoftmaxes) {
      const Kernel& kernel = *find_kernel(name);
      std::vector<float> workspace(kernel.workspace_bytes(p, Device::cpu()) / sizeof(float));
      std::vector<char> expected;
      for (const std::size_t ahead : {0, 4, 64, 128, 192, 256, 2048, 4032}) {
        char* const y = x + size + kPage + ahead;
        std::memset(y, 0xFF, size);
        run(kernel, p, {{x}, {y}, workspace.data()}, StreamView{Device::cpu()});
        const std::vector<char> result(y, y + size);
        if (expected.empty()) {
          EXPECT_EQ(check(kernel, p, {{x, dtype}}, {{y, dtype}}, 1e6).failure, "") << name;
          expected = result;
        }
        EXPECT_EQ(result, expected) << name << " " << describe(kernel, p) << " " << ahead;
      }
    }
  }
}

TEST(ByHand, SoftmaxOfOneNaNIsNaNInItsRowAlone) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const std::uint16_t infinity = dtype == DType::bf16 ? 0x7F80 : 0x7C00, one = dtype == DType::bf16 ? 0x3F80 : 0x3C00;
    for (const std::int64_t cols : {3, 67, 8300}) {
      const Problem p{.dtype = dtype, .rows = 3, .cols = cols};
      for (const int sign : {0, 0x8000}) {  // of the NaN, and of the scores beside it
        for (const int others : {0, 0x8000}) {
          for (const std::int64_t place : {std::int64_t{0}, cols / 2, cols - 1}) {
            std::vector<std::uint16_t> x(static_cast<std::size_t>(3 * cols), static_cast<std::uint16_t>(one | others));
            x[static_cast<std::size_t>(cols + place)] = static_cast<std::uint16_t>(infinity | 1 | sign);
            for (const char* name : kSoftmaxes) {
              const std::vector<std::uint16_t> y = bits_of(name, p, x);
              for (std::int64_t i = 0; i < 3 * cols; ++i) {
                ASSERT_EQ((y[static_cast<std::size_t>(i)] & 0x7FFF) > infinity, i / cols == 1)
                    << name << " " << describe(*find_kernel(name), p) << " " << place << " " << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(ByHand, WhatIsNoNumberStaysNone) {
  std::vector<std::uint16_t> x;  // bf16: those of most and of fewest bits, either sign
  for (int i = 0; i < 67; ++i)
    x.push_back(static_cast<std::uint16_t>((i % 2 == 0 ? 0x7F81 : 0x7FFF) | i % 4 / 2 << 15));
  for (const char* name : {"add", "softmax_three_pass", "softmax_online", "softmax_one_read"}) {
    for (const std::uint16_t bits : bits_of(name, {.dtype = DType::bf16, .rows = 1, .cols = 67}, x)) {
      EXPECT_GT(bits & 0x7FFF, 0x7F80) << name;
    }
  }
}

TEST(ByHand, ConvolutionBeginsAtTheResultAndEndsInZeros) {
  EXPECT_EQ(results_of("conv2d", {.batch = 1, .rows = 2, .cols = 3, .kernel_size = 2},
                       {{1, 2, 3, 4, 5, 6}, {1, 10, 100, 1000}}),
            (std::vector<float>{1 + 20 + 400 + 5000, 2 + 30 + 500 + 6000, 3 + 600, 4 + 50, 5 + 60, 6}));
}

TEST(ByHand, Products) {
  EXPECT_EQ(results_of("batched_matmul", {.batch = 2, .rows = 1, .cols = 2, .inner = 2},
                       {{1, 2, 3, 4}, {1, 2, 3, 4, 10, 20, 30, 40}}),
            (std::vector<float>{7, 10, 150, 220}));
  // Row 0: weights 1, 2, 3, ... 8, 9 in groups of 8 with offsets 1 and 4, scales 0.5 and 2; y: one in each place.
  std::vector<std::uint32_t> words{0x87654321u, 0x9u}, offsets{0x41u};
  const float scales[] = {0.5f, 2.0f};
  std::vector<float> y(9, 1.0f), z(1);
  std::vector<float> workspace(1 << 16);
  Arguments arguments{{words.data(), scales, offsets.data(), y.data()}, {z.data()}, workspace.data()};
  const Problem p{.rows = 1, .cols = 1, .inner = 9, .group_size = 8};
  run(*find_kernel("int4_matmul"), p, arguments, StreamView{Device::cpu()});
  EXPECT_EQ(z[0], 0.5f * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7) + 2.0f * (9 - 4));
}

}  // namespace
}  // namespace warpmeter::primer
