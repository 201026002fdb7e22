#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "kernels/attention/decode.hpp"
#include "kernels/attention/verify.hpp"
#include "tests/kernels/attention/serving_reference.hpp"

/// Decoding on bf16 operands with and without the processor's products of bf16, by the bounds that the tools check.
namespace warpmeter::attention {
namespace {

using serving_test::CpuContext;
using serving_test::HostTensor;

struct Case {
  std::int64_t kv_heads, group, tokens, head_dim, length;
  std::int64_t page_size = 0;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.group << " heads a key/value head, " << c.tokens << " tokens, d" << c.head_dim << ", " << c.length
               << " keys, page " << c.page_size;
  }
};

/// One sequence in a bf16 cache and the queries of its newest tokens. The values may be changed before the first
/// decode().
struct Sequence {
  CpuContext cpu;
  Case c;
  AttentionProblem problem;
  HostTensor q, k, v, o;
  std::vector<float> lse;
  std::unique_ptr<KvCache> cache;

  explicit Sequence(const Case& c_, float magnitude = 1)
      : c(c_),
        q(HostTensor::normal(1, c.kv_heads * c.group, c.tokens, c.head_dim, DType::bf16, 3, magnitude)),
        k(HostTensor::normal(1, c.kv_heads, c.length, c.head_dim, DType::bf16, 1, magnitude)),
        v(HostTensor::normal(1, c.kv_heads, c.length, c.head_dim, DType::bf16, 2)),
        o(1, q.heads, c.tokens, c.head_dim, DType::bf16),
        lse(static_cast<std::size_t>(q.heads * c.tokens)) {
    problem.num_heads = q.heads;
    problem.num_kv_heads = c.kv_heads;
    problem.seq_len = c.tokens;
    problem.kv_len = c.length;
    problem.head_dim = c.head_dim;
    problem.dtype = DType::bf16;
  }

  DecodePlan plan(const DecodeOptions& options = {}) {
    if (cache == nullptr) {
      for (HostTensor* t : {&q, &k, &v}) t->encode();
      cache = std::make_unique<KvCache>(cpu.context,
                                        KvCacheConfig{1, c.kv_heads, c.head_dim, c.length, DType::bf16, c.page_size});
      cache->append(cpu.context, DType::bf16, k.from_row(0), v.from_row(0), c.length);
    }
    return plan_decode(Device::cpu(), {q.heads, c.tokens, DType::bf16}, cache->view(), options);
  }
  /// Returns o's bytes. `products`: of bf16, where this machine has them.
  std::vector<std::byte> decode(bool products, const DecodeOptions& options = {}) {
    DecodePlan chosen = plan(options);
    chosen.bf16_products = chosen.bf16_products && products;
    o.poison();
    std::fill(lse.begin(), lse.end(), NAN);
    flash_decode(cpu.context, {q.heads, c.tokens, DType::bf16}, cache->view(), chosen, as_const(q.operand()),
                 o.operand(), lse.data());
    o.decode();
    return o.bytes;
  }
  [[nodiscard]] CheckReport check() {
    const Verifier verifier(problem, ScorePrecision::fp32, as_const(q.operand()), as_const(k.operand()),
                            as_const(v.operand()), {}, 1);
    return verifier.check({as_const(o.operand()), lse.data(), {}, {}, {}});
  }
  /// Both ways within the bounds.
  void expect_right(const DecodeOptions& options = {}) {
    for (const bool products : {false, true}) {
      decode(products, options);
      const CheckReport report = check();
      EXPECT_TRUE(report.passed()) << c << (products ? ", products of bf16: " : ": ") << report.failure();
    }
  }
};

bool machine_has_products() {
  return Sequence({1, 4, 1, 64, 10}).plan().bf16_products;
}

TEST(DecodeBf16, ThePlanSaysWhereProductsOfBf16AreTaken) {
  for (const Case& c : {Case{2, 2, 1, 64, 9}, Case{1, 8, 1, 128, 9}, Case{1, 2, 4, 256, 9}, Case{1, 1, 2, 32, 9}}) {
    const DecodePlan plan = Sequence(c).plan();
    EXPECT_EQ(plan.bf16_products, machine_has_products()) << c;
    EXPECT_EQ(plan.kernel.ends_with("_avx512_bf16"), machine_has_products()) << plan.kernel;
  }
  for (const Case& c : {Case{2, 1, 1, 64, 9}, Case{1, 9, 1, 64, 9}, Case{1, 4, 1, 80, 9}, Case{1, 4, 1, 17, 9}}) {
    const DecodePlan plan = Sequence(c).plan();
    EXPECT_FALSE(plan.bf16_products) << c;
    EXPECT_FALSE(plan.kernel.ends_with("_bf16")) << plan.kernel;
  }
  Sequence s({1, 4, 1, 64, 10});
  (void)s.plan();
  EXPECT_FALSE(plan_decode(Device::cpu(), {4, 1, DType::fp32}, s.cache->view()).bf16_products) << "queries of fp32";
}

TEST(DecodeBf16, EveryGroupAndWidthStaysWithinTheBounds) {
  for (const std::int64_t head_dim : {32, 64, 80, 96, 128, 160, 256}) {
    for (std::int64_t group = 1; group <= 8; ++group) {
      for (const std::int64_t length : {1, 77, 531}) {
        Sequence({2, group, 1, head_dim, length, group % 3 == 0 ? 16 : 0}).expect_right();
      }
    }
  }
}

TEST(DecodeBf16, EveryNumberOfTokensStaysWithinTheBounds) {
  for (const std::int64_t tokens : {2, 3, 5, 8}) {
    for (const std::int64_t length : {tokens, std::int64_t{33}, std::int64_t{300}}) {
      Sequence({1, 1, tokens, 128, length, 16}).expect_right();
      Sequence({1, tokens == 2 ? 4 : 1, tokens, 64, length}).expect_right();
    }
  }
}

TEST(DecodeBf16, EveryLengthOfALastBlockStaysWithinTheBounds) {
  for (std::int64_t length = 1; length <= 70; ++length) {
    Sequence({1, 3, 1, 64, length, 32}).expect_right();
    Sequence({1, 4, 1, 128, length}).expect_right();  // sums in registers and in memory
    Sequence({1, 5, 1, 96, length, 16}).expect_right();
  }
}

// Runs of keys that end within a vector of probabilities: the next run's stand in the same vector.
TEST(DecodeBf16, BlocksThatAreNoWholeVectorsStayWithinTheBounds) {
  for (const std::int64_t block : {17, 20, 39}) {
    DecodeOptions options;
    options.block = block;
    for (const std::int64_t group : {3, 4, 6}) {
      for (const std::int64_t page : {0, 16, 64}) Sequence({1, group, 1, 128, 203, page}).expect_right(options);
    }
  }
}

// The row after a last odd key is not read as one, whatever is left in it.
TEST(DecodeBf16, WhatIsBeyondTheLastKeyDoesNotCount) {
  for (const std::int64_t head_dim : {64, 96, 128, 160}) {
    for (const std::int64_t length : {1, 15, 33}) {
      Sequence s({1, 4, 1, head_dim, length});
      HostTensor nan(1, 1, length + 16, head_dim, DType::bf16);
      std::fill(nan.values.begin(), nan.values.end(), NAN);
      for (HostTensor* t : {&s.q, &s.k, &s.v, &nan}) t->encode();
      s.cache = std::make_unique<KvCache>(s.cpu.context, KvCacheConfig{1, 1, head_dim, length + 16, DType::bf16, 0});
      s.cache->append(s.cpu.context, DType::bf16, nan.from_row(0), nan.from_row(0), length + 16);
      s.cache->reset(s.cpu.context);
      s.cache->append(s.cpu.context, DType::bf16, s.k.from_row(0), s.v.from_row(0), length);
      s.expect_right();
    }
  }
}

TEST(DecodeBf16, EveryMergeSplitAndBlockStaysWithinTheBounds) {
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
    for (const Deal deal : {Deal::contiguous, Deal::round_robin}) {
      for (const std::int64_t block : {0, 16, 48, 256}) {
        DecodeOptions options;
        options.splits = merge == Merge::sequential ? 0 : 5;
        options.block = block;
        options.merge = merge;
        options.deal = deal;
        Sequence({2, 4, 1, 128, 999, 64}).expect_right(options);
      }
    }
  }
}

TEST(DecodeBf16, AskingAheadChangesNoBit) {
  for (const std::int64_t page : {0, 64}) {
    Sequence s({2, 4, 1, 128, 1100, page});
    DecodePlan plan = s.plan();
    std::vector<std::byte> first;
    for (const bool from_memory : {false, true}) {
      plan.from_memory = from_memory;
      s.o.poison();
      flash_decode(s.cpu.context, {8, 1, DType::bf16}, s.cache->view(), plan, as_const(s.q.operand()), s.o.operand(),
                   s.lse.data());
      if (first.empty()) first = s.o.bytes;
    }
    EXPECT_EQ(s.o.bytes, first) << "page " << page;
  }
}

TEST(DecodeBf16, LargeScoresKeepTheirDigits) {
  Sequence s({2, 4, 1, 64, 700}, 35);  // up to some 10^4; integers: exact sums
  for (HostTensor* t : {&s.q, &s.k}) {
    for (float& value : t->values) value = std::round(value);
  }
  s.expect_right();
}

TEST(DecodeBf16, EqualScoresAndOneThatStandsOut) {
  Sequence equal({1, 4, 1, 128, 1000});
  std::fill(equal.k.values.begin(), equal.k.values.end(), 0.5f);
  equal.expect_right();
  Sequence one({1, 4, 1, 128, 1000});
  for (std::int64_t c = 0; c < 128; ++c) one.k.values[static_cast<std::size_t>(613 * 128 + c)] = one.q.values[c] * 4;
  one.expect_right();
}

// A term below 2^-126 counts as 0 in these products, a subnormal value too.
TEST(DecodeBf16, ValuesOfAnySizeStayWithinTheBounds) {
  for (const float size : {1e-12f, 1e-18f, 1e-25f, 1e-36f, 1e-38f, 1e15f, 1e30f}) {
    Sequence s({2, 4, 1, 64, 300});
    for (float& value : s.v.values) value *= size;
    s.expect_right();
  }
  Sequence zero({1, 4, 1, 64, 300});
  std::fill(zero.v.values.begin(), zero.v.values.end(), 0.0f);
  zero.expect_right();
}

// |q| below 2^-126 times |k| of 10^36 is a score that counts, and so is |k| below 2^-126 times |q| of 10^36.
TEST(DecodeBf16, SubnormalQueriesAndKeysCountWhereTheyMatter) {
  for (const bool query_is_small : {true, false}) {
    Sequence s({1, 4, 1, 64, 200});
    for (float& value : s.q.values) value *= query_is_small ? 2e-39f : 3e36f;
    for (float& value : s.k.values) value *= query_is_small ? 3e36f : 2e-39f;
    s.expect_right();
    const auto without = s.decode(false), with = s.decode(true);
    EXPECT_EQ(with, without) << "such queries are not for these products";
  }
}

TEST(DecodeBf16, NaNAndInfinityGoWhereTheyGoOtherwise) {
  Sequence s({2, 4, 1, 64, 130});
  s.v.values[5 * 64 + 7] = INFINITY;                              // head 0, key 5
  s.k.values[static_cast<std::size_t>(130 * 64 + 9 * 64)] = NAN;  // head 1, key 9
  s.q.values[static_cast<std::size_t>(2 * 64 + 1)] = NAN;         // head 2, of key/value head 0
  for (const bool products : {false, true}) {
    s.decode(products);
    for (std::int64_t h = 0; h < 8; ++h) {
      for (std::int64_t c = 0; c < 64; ++c) {
        const float got = s.o.row(0, h, 0)[c];
        const bool nan = h >= 4 || h == 2;
        EXPECT_EQ(std::isnan(got), nan) << "head " << h << " column " << c << " products " << products;
        EXPECT_EQ(std::isinf(got), !nan && c == 7) << "head " << h << " column " << c << " products " << products;
      }
    }
  }
}

TEST(DecodeBf16, ARowThatSeesOneKeyIsItsValue) {
  Sequence s({2, 4, 1, 128, 1});
  s.decode(true);
  for (std::int64_t h = 0; h < 8; ++h) {
    for (std::int64_t c = 0; c < 128; ++c) ASSERT_EQ(s.o.row(0, h, 0)[c], s.v.row(0, h / 4, 0)[c]) << h << " " << c;
  }
}

}  // namespace
}  // namespace warpmeter::attention
