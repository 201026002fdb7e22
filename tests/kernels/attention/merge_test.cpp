#include "kernels/attention/merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Scores (unscaled, in fp32) and values of one query, and what attention over all of them is in fp64.
struct Problem {
  std::int64_t head_dim;
  float scale;
  std::vector<float> scores;
  std::vector<float> values;

  struct Result {
    std::vector<double> o;
    double lse;
    double largest = 0;  // |v|
  };
  [[nodiscard]] Result reference() const {
    Result result{std::vector<double>(static_cast<std::size_t>(head_dim), 0.0), kMinusInfinity};
    double top = kMinusInfinity;
    for (const float s : scores) top = std::max(top, static_cast<double>(s) * scale);
    if (top == kMinusInfinity) return result;
    double sum = 0;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const double p = std::exp(static_cast<double>(scores[j]) * scale - top);
      sum += p;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        const double v = values[j * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(c)];
        result.o[static_cast<std::size_t>(c)] += p * v;
        result.largest = std::max(result.largest, std::abs(v));
      }
    }
    for (double& value : result.o) value /= sum;
    result.lse = top + std::log(sum);
    return result;
  }
};

/// (o, m, l) of each part, in fp32, as a stream hands them over.
struct Parts {
  std::vector<float> o, m, l;
  Parts(const Problem& problem, const std::vector<std::vector<std::size_t>>& parts) {
    for (const auto& part : parts) {
      double top = kMinusInfinity;
      for (const std::size_t j : part) top = std::max(top, static_cast<double>(problem.scores[j]));
      double sum = 0;
      std::vector<double> total(static_cast<std::size_t>(problem.head_dim), 0.0);
      for (const std::size_t j : part) {
        if (top == kMinusInfinity) break;
        const double p = std::exp((static_cast<double>(problem.scores[j]) - top) * problem.scale);
        sum += p;
        for (std::size_t c = 0; c < total.size(); ++c) total[c] += p * problem.values[j * total.size() + c];
      }
      for (const double value : total) o.push_back(static_cast<float>(value));
      m.push_back(static_cast<float>(top));
      l.push_back(static_cast<float>(sum));
    }
  }
  Partials view(const Problem& problem) {
    Partials partials;
    partials.o = o.data();
    partials.m = m.data();
    partials.l = l.data();
    partials.parts = static_cast<std::int64_t>(m.size());
    partials.rows = 1;
    partials.head_dim = problem.head_dim;
    partials.part_stride = problem.head_dim;
    partials.column_stride = problem.head_dim;
    partials.row_stride = 1;
    partials.scale = problem.scale;
    return partials;
  }
};

enum class Scores { normal, large, equal, dominant, blocks_unseen, nothing };

Problem make(Scores kind, std::int64_t keys, std::int64_t head_dim, std::mt19937& random) {
  Problem problem{head_dim, 0.125f, {}, {}};
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> large(-8e4f, 8e4f);  // 1e4 once scaled
  for (std::int64_t j = 0; j < keys; ++j) {
    float score = 8 * normal(random);
    if (kind == Scores::large) score = large(random);
    if (kind == Scores::equal) score = 77.25f;
    if (kind == Scores::dominant && j == keys / 3) score = 8e4f;
    if (kind == Scores::blocks_unseen && (j / 7) % 2 == 0) score = -std::numeric_limits<float>::infinity();
    if (kind == Scores::nothing) score = -std::numeric_limits<float>::infinity();
    problem.scores.push_back(score);
  }
  for (std::int64_t i = 0; i < keys * head_dim; ++i) problem.values.push_back(normal(random));
  return problem;
}

/// Keys in an order and cut at places that only chance knows; some parts are empty.
std::vector<std::vector<std::size_t>> random_parts(std::size_t keys, std::size_t parts, std::mt19937& random) {
  std::vector<std::vector<std::size_t>> result(parts);
  std::uniform_int_distribution<std::size_t> part(0, parts - 1);
  for (std::size_t j = 0; j < keys; ++j) result[part(random)].push_back(j);
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

void expect_reference(const Problem& problem, const std::vector<std::vector<std::size_t>>& split, Merge merge) {
  Parts parts(problem, split);
  std::vector<float> o(static_cast<std::size_t>(problem.head_dim), NAN);
  float lse = NAN;
  merge_cpu(merge, parts.view(problem), o.data(), problem.head_dim, &lse);
  const Problem::Result expected = problem.reference();
  for (std::size_t c = 0; c < o.size(); ++c) {
    ASSERT_NEAR(o[c], expected.o[c], 2e-6 * std::max(1.0, expected.largest)) << name(merge) << " column " << c;
  }
  if (expected.lse == kMinusInfinity) {
    ASSERT_EQ(lse, -std::numeric_limits<float>::infinity());
  } else {
    ASSERT_NEAR(lse, expected.lse, 1e-6 + 1e-7 * std::abs(expected.lse)) << name(merge);
  }
}

TEST(Merge, RandomPartsOrdersAndMagnitudesGiveTheReference) {
  std::mt19937 random(11);
  for (const Scores kind :
       {Scores::normal, Scores::large, Scores::equal, Scores::dominant, Scores::blocks_unseen, Scores::nothing}) {
    for (const std::size_t count : {1u, 2u, 3u, 5u, 8u, 13u, 64u, 100u}) {
      for (int repeat = 0; repeat < 4; ++repeat) {
        const std::int64_t keys = std::uniform_int_distribution<std::int64_t>(1, 300)(random);
        const Problem problem = make(kind, keys, 1 + repeat * 11, random);
        const auto parts = random_parts(static_cast<std::size_t>(keys), count, random);
        for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) {
          SCOPED_TRACE(testing::Message()
                       << "scores " << static_cast<int>(kind) << ", " << keys << " keys, " << count << " parts");
          expect_reference(problem, parts, merge);
        }
        if (count == 1) expect_reference(problem, parts, Merge::sequential);
      }
    }
  }
}

/// One float of LSE would leave weights of scores at 1e4 wrong in the fourth digit; this case is built to show it.
TEST(Merge, WeightsOfLargeScoresKeepTheirDigits) {
  Problem problem{1, 0.3f, {}, {}};
  problem.scores = {33333.0f, 33333.25f};
  problem.values = {1, -1};
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) expect_reference(problem, {{0}, {1}}, merge);
}

TEST(Merge, RowsDoNotMix) {
  std::mt19937 random(5);
  const Problem first = make(Scores::normal, 40, 3, random);
  const Problem second = make(Scores::large, 40, 3, random);
  const std::vector<std::vector<std::size_t>> split = random_parts(40, 6, random);
  Parts a(first, split), b(second, split);
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) {
    // Both problems as rows of one call, with strides that leave gaps.
    constexpr std::int64_t kColumn = 5, kPart = 2 * kColumn + 1, kRow = 3;
    std::vector<float> o(6 * kPart, NAN), m(6 * kRow, NAN), l(6 * kRow, NAN);
    for (std::size_t p = 0; p < 6; ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        o[p * kPart + c] = a.o[p * 3 + c];
        o[p * kPart + kColumn + c] = b.o[p * 3 + c];
      }
      m[p * kRow] = a.m[p];
      m[p * kRow + 1] = b.m[p];
      l[p * kRow] = a.l[p];
      l[p * kRow + 1] = b.l[p];
    }
    const Partials both{o.data(), m.data(), l.data(), 6, 2, 3, kPart, kColumn, kRow, first.scale};
    std::vector<float> out(8, NAN), lse(2, NAN);
    merge_cpu(merge, both, out.data(), 4, lse.data());
    const auto x = first.reference(), y = second.reference();
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(out[c], x.o[c], 5e-6);
      EXPECT_NEAR(out[4 + c], y.o[c], 5e-6);
    }
    EXPECT_NEAR(lse[0], x.lse, 1e-5);
    EXPECT_NEAR(lse[1], y.lse, 2e-3);
    EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[7])) << "written beyond head_dim";
  }
}

// Parts of a query that is NaN have no maximum, which is what those of a query that sees nothing have, too.
TEST(Merge, ANaNStaysOne) {
  std::mt19937 random(7);
  const Problem problem = make(Scores::normal, 20, 3, random);
  for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) {
    for (const std::size_t healthy : {0u, 1u}) {
      Parts parts(problem, random_parts(20, 4, random));
      for (std::size_t p = healthy; p < 4; ++p) {
        parts.m[p] = -std::numeric_limits<float>::infinity();
        parts.l[p] = NAN;
        std::fill_n(parts.o.begin() + static_cast<std::ptrdiff_t>(3 * p), 3, NAN);
      }
      float o[3] = {}, lse = 0;
      merge_cpu(merge, parts.view(problem), o, 3, &lse);
      EXPECT_TRUE(std::isnan(o[0]) && std::isnan(o[1]) && std::isnan(o[2])) << name(merge) << healthy << ": " << o[0];
      EXPECT_TRUE(std::isnan(lse)) << name(merge) << healthy << ": " << lse;
    }
  }
}

TEST(Merge, NamesParse) {
  for (const std::string_view text : kMergeNames) EXPECT_EQ(name(*parse_merge(text)), text);
  EXPECT_FALSE(parse_merge("pairwise"));
}

TEST(Merge, ASequentialStreamHasOnePart) {
  std::mt19937 random(3);
  const Problem problem = make(Scores::normal, 10, 2, random);
  Parts parts(problem, random_parts(10, 2, random));
  float o[2], lse;
  EXPECT_THROW(merge_cpu(Merge::sequential, parts.view(problem), o, 2, &lse), CheckError);
}

}  // namespace
}  // namespace warpmeter::attention
