#include "kernels/attention/decode.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "kernels/attention/detail/decode_backend.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tests/kernels/attention/serving_reference.hpp"

namespace warpmeter::attention {
namespace {

using serving_test::CpuContext;
using serving_test::HostTensor;
using serving_test::reference_row;

/// A batch of sequences in a cache, their newest tokens' queries, and what decoding them gives.
struct Batch {
  CpuContext cpu;
  DecodeProblem problem;
  std::vector<std::int64_t> lengths;
  HostTensor k, v, q, o;
  std::vector<float> lse;
  KvCache cache;

  Batch(DecodeProblem p, std::int64_t kv_heads, std::int64_t head_dim, std::vector<std::int64_t> lengths_,
        DType cache_dtype, std::int64_t page_size = 0, float magnitude = 1)
      : problem(p),
        lengths(std::move(lengths_)),
        k(HostTensor::normal(count(), kv_heads, longest(), head_dim, cache_dtype, 1, magnitude)),
        v(HostTensor::normal(count(), kv_heads, longest(), head_dim, cache_dtype, 2)),
        q(HostTensor::normal(count(), p.num_heads, p.tokens, head_dim, p.dtype, 3, magnitude)),
        o(count(), p.num_heads, p.tokens, head_dim, p.dtype),
        lse(static_cast<std::size_t>(count() * p.num_heads * p.tokens)),
        cache(cpu.context, {count(), kv_heads, head_dim, longest() + 40, cache_dtype, page_size}) {
    cache.append(cpu.context, cache_dtype, k.from_row(0), v.from_row(0), lengths);
  }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(lengths.size()); }
  [[nodiscard]] std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

  void run(const DecodeOptions& options = {}) {
    DecodePlan plan = plan_decode(Device::cpu(), problem, cache.view(), options);
    plan.from_memory = !plan.from_memory;
    decode(plan);
    const std::vector<float> other_o = o.values, other_lse = lse;
    plan.from_memory = !plan.from_memory;
    decode(plan);
    EXPECT_EQ(std::memcmp(o.values.data(), other_o.data(), other_o.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(lse.data(), other_lse.data(), other_lse.size() * sizeof(float)), 0);
  }
  void decode(const DecodePlan& plan) {
    o.poison();
    std::fill(lse.begin(), lse.end(), NAN);
    const std::size_t before = cpu.allocator.stats().current.allocated;
    cpu.allocator.reset_peak();
    flash_decode(cpu.context, problem, cache.view(), plan, as_const(q.operand()), o.operand(), lse.data());
    EXPECT_EQ(cpu.allocator.stats().current.allocated, before);
    EXPECT_EQ(cpu.allocator.stats().peak.allocated, before + plan.workspace_bytes);
    o.decode();
  }

  /// Largest error of o over largest |reference|; lse is looked at, too.
  [[nodiscard]] double error() const {
    double error = 0, largest = 0;
    for (std::int64_t b = 0; b < count(); ++b) {
      for (std::int64_t h = 0; h < problem.num_heads; ++h) {
        for (std::int64_t t = 0; t < problem.tokens; ++t) {
          const std::int64_t length = lengths[static_cast<std::size_t>(b)];
          const std::int64_t keys = problem.causal ? length - problem.tokens + t + 1 : length;
          const auto expected = reference_row(q.row(b, h, t), k, v, b, h / (problem.num_heads / k.heads), keys);
          for (std::int64_t c = 0; c < k.head_dim; ++c) {
            const double want = expected.o[static_cast<std::size_t>(c)];
            const double got = o.row(b, h, t)[c];
            if (!(std::abs(got - want) <= error)) error = std::isnan(got) ? INFINITY : std::abs(got - want);
            largest = std::max(largest, std::abs(want));
          }
          const float got = lse[static_cast<std::size_t>((b * problem.num_heads + h) * problem.tokens + t)];
          EXPECT_NEAR(got, expected.lse, 2e-6 * std::max(10.0, std::abs(expected.lse)))
              << "lse of b" << b << " h" << h << " t" << t;
        }
      }
    }
    return error / largest;
  }
};

/// The result's own rounding, beside fp32 arithmetic.
double allowed(DType dtype) {
  return dtype == DType::fp32 ? 1e-5 : unit_roundoff(dtype) + 1e-5;
}

TEST(Decode, EveryShapeGivesTheReference) {
  struct Shape {
    std::int64_t heads, kv_heads, head_dim, tokens;
  };
  for (const Shape s : {Shape{8, 8, 64, 1}, Shape{8, 2, 128, 1}, Shape{4, 4, 80, 1}, Shape{3, 1, 17, 2},
                        Shape{2, 2, 1, 1}, Shape{8, 1, 256, 1}, Shape{32, 2, 64, 1}, Shape{4, 2, 96, 8},
                        Shape{6, 2, 40, 5}, Shape{10, 1, 33, 16}, Shape{2, 1, 128, 3}}) {
    for (const std::int64_t page : {0, 16, 64}) {
      Batch batch({s.heads, s.tokens, DType::fp32}, s.kv_heads, s.head_dim, {s.tokens, 77, 300}, DType::fp32, page);
      batch.run();
      EXPECT_LE(batch.error(), 1e-5) << s.heads << "/" << s.kv_heads << " d" << s.head_dim << " t" << s.tokens
                                     << " page " << page;
    }
  }
}

TEST(Decode, EveryPairOfTypesGivesTheReference) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType cached : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const std::int64_t heads : {2, 24}) {  // few rows, rows in the lanes
        for (const std::int64_t head_dim : {64, 41}) {
          Batch batch({heads, 1, dtype}, 2, head_dim, {530, 19}, cached, 32);
          batch.run({3, 64});
          EXPECT_LE(batch.error(), allowed(dtype)) << name(dtype) << " of " << name(cached) << " heads " << heads;
        }
      }
    }
  }
}

// Few rows are worked on together, by fours and twos; keys come by vectors, of which the last is not whole.
TEST(Decode, EveryNumberOfRowsOfAKeyGivesTheReference) {
  for (const DType cached : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t head_dim : {64, 96, 112, 128}) {
      for (std::int64_t rows = 1; rows <= 9; ++rows) {
        for (const std::int64_t page : {0, 16}) {
          const bool of_tokens = rows % 2 == 1;  // each sees a key more than the one before it
          const DecodeProblem problem{of_tokens ? 1 : rows, of_tokens ? rows : 1, DType::fp32};
          Batch batch(problem, 1, head_dim, {rows, 99, 135}, cached, page);
          batch.run();
          EXPECT_LE(batch.error(), 1e-5) << rows << " rows of " << name(cached) << " d" << head_dim << " page " << page;
        }
      }
    }
  }
}

// Runs of keys that end within a vector of probabilities: the next run's stand in the same vector.
TEST(Decode, BlocksThatAreNoWholeVectorsGiveTheReference) {
  for (const std::int64_t group : {3, 4, 7}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t page : {0, 16}) {
        Batch batch({group, 1, DType::fp32}, 1, head_dim, {203, 16}, DType::fp32, page);
        for (const std::int64_t block : {17, 20, 39}) {
          batch.run({2, block});
          EXPECT_LE(batch.error(), 1e-5) << group << " rows d" << head_dim << " page " << page << " block " << block;
        }
      }
    }
  }
}

TEST(Decode, EveryMergeDealSplitAndBlockGivesTheReference) {
  Batch batch({8, 1, DType::fp32}, 4, 64, {1000, 1, 257}, DType::fp32, 16);
  std::vector<float> first;
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
    for (const Deal deal : {Deal::contiguous, Deal::round_robin}) {
      for (const std::int64_t splits : {0, 1, 4, 5, 16}) {
        for (const std::int64_t block : {0, 16, 48, 256}) {
          if (merge == Merge::sequential && splits > 1) continue;
          batch.run({splits, block, merge, deal});
          ASSERT_LE(batch.error(), 2e-6) << name(merge) << " " << name(deal) << " " << splits << " x " << block;
          if (first.empty()) first = batch.o.values;
          for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(batch.o.values[i], first[i], 1e-6);
        }
      }
    }
  }
}

TEST(Decode, ScoresOfTenThousandKeepTheirDigits) {
  // Integer operands: the scores are exact, so every error is the softmax's or the merge's.
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) {
    Batch batch({4, 1, DType::fp32}, 2, 64, {700}, DType::fp32);
    for (HostTensor* t : {&batch.k, &batch.q}) {
      for (float& value : t->values) value = std::round(value * 35);
      t->encode();
    }
    batch.cache.reset(batch.cpu.context);
    batch.cache.append(batch.cpu.context, DType::fp32, batch.k.from_row(0), batch.v.from_row(0), 700);
    batch.run({7, 32, merge});
    EXPECT_LE(batch.error(), 1e-5) << name(merge);
  }
}

TEST(Decode, WithoutTheMaskEveryTokenSeesAll) {
  Batch batch({4, 6, DType::fp32, false}, 2, 32, {50, 6}, DType::fp32);
  batch.run();
  EXPECT_LE(batch.error(), 1e-5);
}

TEST(Decode, PagedIsContiguousToTheBitWhereABlockIsInOnePage) {
  std::vector<float> first;
  for (const std::int64_t page : {0, 64, 256, 16}) {
    Batch batch({8, 2, DType::fp32}, 4, 64, {513, 100}, DType::bf16, page);
    batch.run({4, 64});
    if (first.empty()) first = batch.o.values;
    if (page != 16) {
      EXPECT_EQ(batch.o.values, first) << page;
    } else {  // a block's sum is taken page by page
      for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(batch.o.values[i], first[i], 1e-6);
    }
  }
}

TEST(Decode, BitsDoNotDependOnThreads) {
  const int before = num_threads();
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    Batch batch({8, 1, DType::fp32}, 2, 64, {5000}, DType::fp32);
    batch.run({8, 0});
    if (first.empty()) first = batch.o.values;
    EXPECT_EQ(batch.o.values, first) << threads;
  }
  set_num_threads(before);
}

TEST(Decode, RowsBehindTheLastTokenAreNotData) {
  // NaN appended and cut off again lies where a careless vector load would take it in.
  for (const std::int64_t heads : {2, 8, 40}) {  // a row of a key, rows by fours, rows in the lanes
    for (const std::int64_t head_dim : {64, 41, 128}) {
      Batch batch({heads, 1, DType::fp32}, 2, head_dim, {37, 100}, DType::fp32, 16);
      HostTensor nan(2, 2, 30, head_dim, DType::fp32);
      nan.poison();
      batch.cache.append(batch.cpu.context, DType::fp32, nan.from_row(0), nan.from_row(0), 30);
      batch.cache.truncate(batch.cpu.context, 0, 37);
      batch.cache.truncate(batch.cpu.context, 1, 100);
      batch.run();
      EXPECT_LE(batch.error(), 1e-5);
    }
  }
}

TEST(Decode, ANaNStaysOneInItsOwnRow) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const std::int64_t heads : {2, 24}) {
      Batch batch({heads, 1, dtype}, 1, 32, {700, 90}, dtype);
      batch.q.values[1] = NAN;  // of the first sequence's first head
      batch.q.encode();
      for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
        batch.run({merge == Merge::sequential || merge == Merge::two_pass ? 0 : 4, 64, merge});
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t h = 0; h < heads; ++h) {
            const bool expected = b == 0 && h == 0;
            ASSERT_EQ(std::isnan(batch.o.row(b, h, 0)[3]), expected) << name(merge) << " b" << b << " h" << h;
            ASSERT_EQ(std::isnan(batch.lse[static_cast<std::size_t>(b * heads + h)]), expected)
                << name(merge) << " b" << b << " h" << h;
          }
        }
      }
    }
  }
}

std::string refusal(const DecodeProblem& problem, const KvView& view, const DecodeOptions& options = {}) {
  try {
    (void)plan_decode(Device::cpu(), problem, view, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Decode, RefusalsSayWhat) {
  Batch batch({4, 1, DType::fp32}, 2, 32, {10, 3}, DType::fp32);
  batch.cache.reset(batch.cpu.context, 1);
  EXPECT_EQ(refusal({4, 1, DType::fp32}, batch.cache.view()), "decode: sequence 1 is empty: prefill it first");
  batch.cache.reset(batch.cpu.context);
  batch.cache.append(batch.cpu.context, DType::fp32, batch.k.from_row(0), batch.v.from_row(0), 3);
  EXPECT_EQ(refusal({4, 4, DType::fp32}, batch.cache.view()),
            "decode: sequence 0 holds 3 tokens, fewer than the 4 query tokens: append their keys and values first");
  EXPECT_EQ(refusal({3, 1, DType::fp32}, batch.cache.view()),
            "decode: 3 query heads cannot share 2 key/value heads evenly");
  EXPECT_NE(refusal({4, 1, DType::tf32}, batch.cache.view()).find("tf32"), std::string::npos);
  EXPECT_NE(refusal({4, 1, DType::fp32}, batch.cache.view(), {4, 0, Merge::sequential}).find("sequential"),
            std::string::npos);
  EXPECT_NE(refusal({4, 1, DType::fp32}, batch.cache.view(), {0, 8}).find("block"), std::string::npos);
  EXPECT_NE(refusal({4, 1, DType::fp32}, batch.cache.view(), {5000, 0}).find("splits"), std::string::npos);
}

TEST(Decode, PlansKeepThreadsBusyWithoutSplittingMoreThanNeeded) {
  const int before = num_threads();
  set_num_threads(2);
  Batch many({8, 1, DType::fp32}, 8, 64, {4096}, DType::fp32);
  EXPECT_EQ(plan_decode(Device::cpu(), many.problem, many.cache.view()).splits, 1);
  Batch one({1, 1, DType::fp32}, 1, 64, {4096}, DType::fp32);
  EXPECT_EQ(plan_decode(Device::cpu(), one.problem, one.cache.view()).splits, 2);
  Batch three({3, 1, DType::fp32}, 3, 64, {4096}, DType::fp32);
  EXPECT_EQ(plan_decode(Device::cpu(), three.problem, three.cache.view()).splits, 2);
  Batch paged({8, 1, DType::fp32}, 8, 64, {4096}, DType::fp32, 64);  // a stream reads all heads of a page
  EXPECT_EQ(plan_decode(Device::cpu(), paged.problem, paged.cache.view()).splits, 2);
  Batch small({1, 1, DType::fp32}, 1, 64, {256}, DType::fp32);
  EXPECT_EQ(plan_decode(Device::cpu(), small.problem, small.cache.view()).splits, 1);
  set_num_threads(before);
}

// A merge on CUDA has room for so many partial results; more would be a launch that is refused.
TEST(Decode, ABlockThatCudaCannotDealIsUnsupportedThereAlone) {
  DecodeOptions options;
  EXPECT_FALSE(unsupported(DeviceKind::cuda, options));
  for (const std::int64_t block : {16, 64, 4096}) {
    options.block = block;
    EXPECT_FALSE(unsupported(DeviceKind::cuda, options)) << block;
  }
  options.block = 100;
  EXPECT_FALSE(unsupported(DeviceKind::cpu, options));
  EXPECT_EQ(unsupported(DeviceKind::cuda, options).value_or(""), "block must be a multiple of 16 on CUDA, not 100");
}

TEST(Decode, TheTwoPassFormOnCudaKeepsNoMoreBlocksThanCanBeMerged) {
  EXPECT_EQ(detail::two_pass_block(1, 1024), 1024);
  EXPECT_EQ(detail::two_pass_block(8192 * 16, 16), 16);
  EXPECT_EQ(detail::two_pass_block(8192 * 16 + 1, 16), 32);
  EXPECT_EQ(detail::two_pass_block(8192 * 1024 + 1, 1024), 1040);
  for (const std::int64_t longest : {1'000'000, 20'000'000, 2147483647}) {
    for (const std::int64_t block : {16, 48, 1024, 4096}) {
      const std::int64_t used = detail::two_pass_block(longest, block);
      EXPECT_EQ(used % 16, 0) << longest << " keys, block " << block;
      EXPECT_LE((longest + used - 1) / used, detail::kMostMergedParts) << longest << " keys, block " << block;
      EXPECT_TRUE(used == block || (longest + used - 17) / (used - 16) > detail::kMostMergedParts)
          << "no larger than it must be: " << longest << " keys, block " << block;
    }
  }
}

TEST(Decode, CountsWorkOfVisiblePairs) {
  Batch batch({4, 3, DType::bf16}, 2, 32, {10, 5}, DType::bf16);
  const double pairs = (8 + 9 + 10) + (3 + 4 + 5);
  EXPECT_EQ(decode_flops(batch.problem, batch.cache.view()), 4 * 4 * pairs * 32);
  const double rows = 2 * 4 * 3;
  EXPECT_EQ(decode_bytes(batch.problem, batch.cache.view()), 2.0 * 15 * 2 * 32 * 2 + rows * (2 * 32 * 2 + 4));
}

}  // namespace
}  // namespace warpmeter::attention
