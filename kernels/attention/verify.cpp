#include "kernels/attention/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/reference.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::int64_t kMostGroups = 64;          // (batch, kv head) pairs whose query rows are sampled
constexpr std::int64_t kMostKeyGroups = 4;        // and whose key rows are: each costs all queries that see it
constexpr std::int64_t kWantedRows = 16;          // query rows a group, before more groups are taken
constexpr std::int64_t kWantedKeys = 8;           // key rows that an exact treatment must leave room for
constexpr std::int64_t kMostKeys = 256;           // key rows of a sampled group
constexpr std::int64_t kTiles[] = {64, 80, 128};  // common tile sizes: rows at their borders go wrong first

/// A small generator of our own, so that the sample does not depend on the standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_;
};

std::vector<std::int64_t> all_rows(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  return rows;
}

/// `wanted` of `count` rows: first and last, the neighbours of `edge` (where the causal mask begins to show keys), rows
/// beside tile borders for half of the rest, random ones.
std::vector<std::int64_t> sample_rows(std::int64_t count, std::int64_t wanted, std::int64_t edge, Random& random) {
  if (wanted >= count) return all_rows(count);
  std::set<std::int64_t> rows{0, count - 1};
  const auto size = [&] { return static_cast<std::int64_t>(rows.size()); };
  for (const std::int64_t row : {edge - 1, edge}) {
    if (row >= 0 && row < count && size() < wanted) rows.insert(row);
  }
  const std::int64_t borders = (wanted - size()) / 2;
  for (std::int64_t i = 0; i < borders; ++i) {
    const std::int64_t tile = kTiles[random.below(3)];
    if (count <= tile) continue;
    const std::int64_t border = tile * (1 + random.below(count / tile)) - (i % 2);
    if (border < count) rows.insert(border);
  }
  while (size() < wanted) rows.insert(random.below(count));
  return {rows.begin(), rows.end()};
}

/// A dense copy of some heads of one batch entry.
class HeadsCopy {
 public:
  HeadsCopy(const ConstOperand& from, std::int64_t batch, std::int64_t head, std::int64_t heads, std::int64_t rows,
            std::int64_t dim, std::size_t bytes)
      : row_(dim), head_(rows * dim), data_(static_cast<std::size_t>(heads * rows * dim) * bytes) {
    const auto element = static_cast<std::int64_t>(bytes);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t offset = batch * from.batch_stride + (head + h) * from.head_stride + r * from.row_stride;
        std::memcpy(data_.data() + (h * head_ + r * row_) * element,
                    static_cast<const char*>(from.data) + offset * element, static_cast<std::size_t>(dim * element));
      }
    }
  }
  [[nodiscard]] ConstOperand operand() const { return {data_.data(), 0, head_, row_}; }

 private:
  std::int64_t row_, head_;
  std::vector<char> data_;
};

/// The largest differences of one output between the rounded formula and the exact one, and the largest magnitudes.
struct Scale {
  double reference = 0;  // max |reference|
  double yardstick = 0;  // max |rounded formula - reference|
  double error_sum = 0;  // of the rounded formula's errors, away from zero
  double magnitude = 0;  // sum |reference|, where that is finite
  double floor = 0;      // dq, dk: c in verify.hpp
};

/// Rows of one output with their reference values.
struct Expected {
  std::vector<double> values;
  std::vector<double> rounded;  // the yardstick's; empty for fp32 and tf32
};

/// What is compared in one (batch, key/value head).
struct Sample {
  std::int64_t batch = 0, kv_head = 0;
  std::vector<std::int64_t> queries, keys;
  bool exact_keys = true;  // LSE and D of all queries are the reference's own
  Expected o, lse, dq, dk, dv;
  // For keys whose query statistics come from the outputs: everything of the group, kept to the check.
  std::vector<HeadsCopy> copies;  // q, k, v, d_o
};

double largest(std::span<const double> values) {
  double result = 0;
  for (const double x : values) {
    if (std::isfinite(x)) result = std::max(result, std::fabs(x));
  }
  return result;
}

}  // namespace

struct Verifier::Impl {
  AttentionProblem problem;
  bool backward = false;
  bool complete = true;
  Rounding rounding = Rounding::none;
  ScorePrecision scores = ScorePrecision::fp32;
  std::vector<Sample> samples;
  Scale o, lse, dq, dk, dv;
  double term = 0;              // largest_term over the samples
  double key_term = 0;          // largest_key_term over those with exact keys
  double max_q = 0, max_k = 0;  // largest |q|, |k| of the sampled groups' heads
  double product = 0;           // largest |q . k|

  [[nodiscard]] std::int64_t group() const { return problem.group_size(); }

  void choose_samples(std::uint64_t seed, double budget);
  void evaluate(Sample& sample, const ReferenceInputs& inputs);
  /// Returns largest_key_term.
  double evaluate_keys(const Sample& sample, const HostOutputs& outputs, Expected& dk, Expected& dv) const;
  /// c of dk, in verify.hpp.
  [[nodiscard]] double key_floor(double largest_key_term) const {
    return std::max(term, largest_key_term) * problem.scale() * max_q;
  }
  /// Of every output but lse.
  [[nodiscard]] double tolerance(const Scale& scale) const;
  [[nodiscard]] double lse_tolerance() const;
  /// Of the bias of o or dv, beside what its own rows allow. `from_lse`: P is made from LSE.
  [[nodiscard]] double bias_tolerance(const Scale& scale, bool from_lse) const;
  [[nodiscard]] std::string note() const;
};

void Verifier::Impl::choose_samples(std::uint64_t seed, double budget) {
  const std::int64_t groups = problem.batch * problem.num_kv_heads;
  ReferenceCosts cost = reference_costs(problem, backward);
  if (rounding != Rounding::none) {  // once more for the yardstick
    cost.query_row *= 2;
    cost.key_row *= 2;
    cost.statistics *= 2;
  }
  const double whole_group =
      cost.query_row * static_cast<double>(problem.seq_len) + cost.key_row * static_cast<double>(problem.kv_len);
  const auto add = [&](std::int64_t group, std::vector<std::int64_t> queries) {
    Sample sample;
    sample.batch = group / problem.num_kv_heads;
    sample.kv_head = group % problem.num_kv_heads;
    sample.queries = std::move(queries);
    samples.push_back(std::move(sample));
  };
  if (static_cast<double>(groups) * whole_group <= budget) {
    for (std::int64_t group = 0; group < groups; ++group) {
      add(group, all_rows(problem.seq_len));
      if (backward) samples.back().keys = all_rows(problem.kv_len);
    }
    return;
  }
  complete = false;
  Random random(seed ^ (static_cast<std::uint64_t>(problem.seq_len) << 32) ^
                static_cast<std::uint64_t>(problem.kv_len));

  // Query rows: a few in many groups, so that heads mixed up are seen. Reading a group's keys in has its price too.
  const double query_budget = backward ? budget / 2 : budget;
  const double reading = 16.0 * static_cast<double>(problem.kv_len * problem.head_dim);
  const double per_group = cost.query_row * kWantedRows + reading;
  const auto query_groups = static_cast<std::int64_t>(
      std::clamp(query_budget / per_group, 1.0, static_cast<double>(std::min(groups, kMostGroups))));
  const auto rows = static_cast<std::int64_t>(
      std::clamp((query_budget / static_cast<double>(query_groups) - reading) / cost.query_row, 4.0,
                 static_cast<double>(problem.seq_len)));
  const std::int64_t edge = problem.causal ? problem.seq_len - problem.kv_len : 0;
  for (const std::int64_t group : sample_rows(groups, query_groups, 0, random)) {
    add(group, sample_rows(problem.seq_len, rows, edge, random));
  }
  if (!backward) return;

  // Key rows: exact where LSE and D of all queries can be had for the budget, else with the outputs' own.
  const double key_budget = budget / 2;
  const auto sampled_groups = static_cast<std::int64_t>(samples.size());
  std::int64_t key_groups = std::min(sampled_groups, kMostKeyGroups);
  const double least = cost.statistics + cost.key_row * kWantedKeys;
  const auto affordable = static_cast<std::int64_t>(key_budget / least);
  const bool exact = affordable >= 1;
  if (exact) key_groups = std::min(key_groups, affordable);
  const double left = key_budget / static_cast<double>(key_groups) - (exact ? cost.statistics : 0.0);
  const auto keys = static_cast<std::int64_t>(
      std::clamp(left / cost.key_row, 4.0, static_cast<double>(std::min(problem.kv_len, kMostKeys))));
  for (const std::int64_t index : sample_rows(sampled_groups, key_groups, 0, random)) {
    Sample& sample = samples[static_cast<std::size_t>(index)];
    sample.keys = sample_rows(problem.kv_len, keys, problem.causal ? -edge : 0, random);
    sample.exact_keys = exact;
  }
}

namespace {

std::vector<double> copy(std::span<const double> values) {
  return {values.begin(), values.end()};
}

void measure(const Expected& expected, Scale& scale) {
  scale.reference = std::max(scale.reference, largest(expected.values));
  for (std::size_t i = 0; i < expected.rounded.size(); ++i) {
    // Where the rounded formula overflows it is no yardstick.
    const double error = expected.rounded[i] - expected.values[i];
    if (!std::isfinite(error) || expected.values[i] == 0) {
      scale.yardstick = std::isfinite(error) ? std::max(scale.yardstick, std::fabs(error)) : scale.yardstick;
      continue;
    }
    scale.yardstick = std::max(scale.yardstick, std::fabs(error));
    scale.error_sum += std::copysign(error, error * expected.values[i]);
    scale.magnitude += std::fabs(expected.values[i]);
  }
}

}  // namespace

void Verifier::Impl::evaluate(Sample& sample, const ReferenceInputs& inputs) {
  ReferenceRequest request;
  request.batch = sample.batch;
  request.kv_head = sample.kv_head;
  request.queries = sample.queries;
  if (sample.exact_keys) request.keys = sample.keys;
  request.backward = backward;
  request.scores = scores;
  std::vector<double> workspace(reference_workspace(problem, request));
  const auto run = [&](Rounding how, std::vector<double> Expected::*to) {
    request.rounding = how;
    const ReferenceResult result = evaluate_reference(problem, inputs, request, workspace.data());
    sample.o.*to = copy(result.o);
    sample.lse.*to = copy(result.lse);
    sample.dq.*to = copy(result.dq);
    sample.dk.*to = copy(result.dk);
    sample.dv.*to = copy(result.dv);
    if (how != Rounding::none) return;
    term = std::max(term, result.largest_term);
    key_term = std::max(key_term, result.largest_key_term);
    product = std::max(product, result.largest_product);
  };
  run(Rounding::none, &Expected::values);
  if (rounding != Rounding::none) run(rounding, &Expected::rounded);
  measure(sample.o, o);
  measure(sample.lse, lse);
  measure(sample.dq, dq);
  measure(sample.dk, dk);
  measure(sample.dv, dv);
}

double Verifier::Impl::evaluate_keys(const Sample& sample, const HostOutputs& outputs, Expected& dk_out,
                                     Expected& dv_out) const {
  WM_CHECK(outputs.o.data != nullptr && outputs.lse != nullptr,
           "rows of dk and dv of a problem this large are checked with the run's own o and lse");
  const std::int64_t rows = problem.seq_len, dim = problem.head_dim;
  std::vector<double> known_lse(static_cast<std::size_t>(group() * rows)), known_d(known_lse.size());
  const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const ConstOperand d_o = sample.copies[3].operand();
  const detail::RowOps& ops = detail::row_ops(problem.dtype);
  for (std::int64_t member = 0; member < group(); ++member) {
    const std::int64_t head = sample.kv_head * group() + member;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto place = static_cast<std::size_t>(member * rows + r);
      known_lse[place] = double(outputs.lse[(sample.batch * problem.num_heads + head) * rows + r]);
      float o_row[256], d_o_row[256];
      const std::int64_t offset =
          sample.batch * outputs.o.batch_stride + head * outputs.o.head_stride + r * outputs.o.row_stride;
      ops.to_float(static_cast<const char*>(outputs.o.data) + offset * bytes, o_row, dim);
      ops.to_float(static_cast<const char*>(d_o.data) + (member * d_o.head_stride + r * d_o.row_stride) * bytes,
                   d_o_row, dim);
      double sum = 0;
      for (std::int64_t c = 0; c < dim; ++c) sum += double(o_row[c]) * double(d_o_row[c]);
      known_d[place] = sum;
    }
  }
  AttentionProblem one = problem;  // the copies hold this group alone
  one.batch = 1;
  one.num_heads = group();
  one.num_kv_heads = 1;
  ReferenceRequest request;
  request.keys = sample.keys;
  request.backward = true;
  request.scores = scores;
  request.known_lse = known_lse.data();
  request.known_d = known_d.data();
  const ReferenceInputs inputs{sample.copies[0].operand(), sample.copies[1].operand(), sample.copies[2].operand(), d_o};
  std::vector<double> workspace(reference_workspace(one, request));
  const auto run = [&](Rounding how, std::vector<double> Expected::*to) {
    request.rounding = how;
    const ReferenceResult result = evaluate_reference(one, inputs, request, workspace.data());
    dk_out.*to = copy(result.dk);
    dv_out.*to = copy(result.dv);
    return result.largest_key_term;
  };
  const double largest_key_term = run(Rounding::none, &Expected::values);
  if (rounding != Rounding::none) run(rounding, &Expected::rounded);
  return largest_key_term;
}

constexpr double kFp32Tolerance = 1e-5, kTf32Tolerance = 1e-3;

double Verifier::Impl::tolerance(const Scale& scale) const {
  const double u = unit_roundoff(problem.dtype);
  if (is_16bit(problem.dtype)) return 2 * scale.yardstick + u * std::max(scale.reference, scale.floor);
  return (problem.dtype == DType::tf32 ? kTf32Tolerance : kFp32Tolerance) * scale.reference + 4 * u * scale.floor;
}

double Verifier::Impl::lse_tolerance() const {
  const double magnitude = std::max(lse.reference, 1.0);
  if (problem.dtype == DType::tf32) return kTf32Tolerance * magnitude;
  if (!is_16bit(problem.dtype) || scores == ScorePrecision::fp32) return kFp32Tolerance * magnitude;
  return 2 * lse.yardstick + unit_roundoff(problem.dtype) * magnitude;
}

double Verifier::Impl::bias_tolerance(const Scale& scale, bool from_lse) const {
  if (!is_16bit(problem.dtype)) return kInfinity;
  const double terms = static_cast<double>(from_lse ? problem.seq_len * group() : problem.kv_len);
  double tolerance = unit_roundoff(problem.dtype) / 8 + 0x1p-24 * terms / 16;
  if (scores == ScorePrecision::fp32) {
    constexpr double kLseRoundings = 3 * 0x1p-24;
    if (from_lse) tolerance += kLseRoundings * lse.reference;
  } else if (scale.magnitude > 0) {
    tolerance += 2 * std::fabs(scale.error_sum) / scale.magnitude;
  }
  return tolerance;
}

std::string Verifier::Impl::note() const {
  constexpr double kFp16End = 65520;  // rounds to infinity
  if (problem.dtype != DType::fp16 || scores != ScorePrecision::storage || product < kFp16End) return "";
  char text[120];
  std::snprintf(text, sizeof(text), "|q . k| reaches %.3g, and scores that are stored in fp16 end at 65504", product);
  return text;
}

namespace {

/// Compares values one by one with what is expected.
class Comparison {
 public:
  explicit Comparison(std::string output) { check_.output = std::move(output); }

  /// `column` -1: the output has no columns.
  void add(double got, double expected, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
    const bool same_infinity = std::isinf(expected) && got == expected;
    double error = same_infinity ? 0.0 : std::fabs(got - expected);
    if (std::isnan(error)) error = kInfinity;
    if (error > check_.max_error || place_.empty()) {
      check_.max_error = std::max(check_.max_error, error);
      place_ = {batch, head, row, column};
      got_ = got;
      expected_ = expected;
    }
    if (!std::isfinite(error) || same_infinity || expected == 0) return;
    row_bias_ += std::copysign(got - expected, (got - expected) * expected);
    magnitude_ += std::fabs(expected);
  }

  void end_row() {
    bias_ += row_bias_;
    squares_ += row_bias_ * row_bias_;
    row_bias_ = 0;
  }

  /// `bias_tolerance`: to which that of the rows is added.
  [[nodiscard]] OutputCheck finish(double max_reference, double tolerance, double bias_tolerance) {
    constexpr double kDeviations = 4;
    check_.max_reference = max_reference;
    check_.tolerance = tolerance;
    check_.bias_tolerance = bias_tolerance;
    if (magnitude_ > 0) {
      check_.bias = bias_ / magnitude_;
      check_.bias_tolerance += kDeviations * std::sqrt(squares_) / magnitude_;
    }
    check_.passed = !place_.empty() && check_.max_error <= tolerance && std::fabs(check_.bias) <= check_.bias_tolerance;
    if (!place_.empty()) {
      const auto text = [](double x) {
        char digits[40];
        std::snprintf(digits, sizeof(digits), "%.9g", x);
        return std::string(digits);
      };
      std::string& worst = check_.worst;
      worst.append("b").append(std::to_string(place_[0])).append(" h").append(std::to_string(place_[1]));
      worst.append(" row ").append(std::to_string(place_[2]));
      if (place_[3] >= 0) worst.append(" col ").append(std::to_string(place_[3]));
      worst.append(": got ").append(text(got_)).append(", expected ").append(text(expected_));
    }
    return check_;
  }

 private:
  OutputCheck check_;
  std::vector<std::int64_t> place_;
  double got_ = 0, expected_ = 0;
  double row_bias_ = 0, bias_ = 0, squares_ = 0, magnitude_ = 0;  // errors away from zero; sum |expected|
};

}  // namespace

Verifier::Verifier(const AttentionProblem& problem, ScorePrecision scores, ConstOperand q, ConstOperand k,
                   ConstOperand v, ConstOperand d_o, std::uint64_t seed, double work_budget)
    : impl_(std::make_unique<Impl>()) {
  WM_CHECK(invalid_reason(problem).empty(), invalid_reason(problem));
  impl_->problem = problem;
  impl_->scores = scores;
  impl_->backward = d_o.data != nullptr;
  if (problem.dtype == DType::bf16) impl_->rounding = Rounding::bf16;
  if (problem.dtype == DType::fp16) impl_->rounding = Rounding::fp16;
  impl_->choose_samples(seed, work_budget);
  const ReferenceInputs inputs{q, k, v, d_o};
  const std::size_t bytes = size_of(problem.dtype);
  const std::int64_t group = problem.group_size();
  for (Sample& sample : impl_->samples) {
    impl_->evaluate(sample, inputs);
    const std::int64_t head = sample.kv_head * group;
    if (!sample.exact_keys) {
      const auto keep = [&](const ConstOperand& from, std::int64_t first, std::int64_t heads, std::int64_t rows) {
        sample.copies.emplace_back(from, sample.batch, first, heads, rows, problem.head_dim, bytes);
      };
      keep(q, head, group, problem.seq_len);
      keep(k, sample.kv_head, 1, problem.kv_len);
      keep(v, sample.kv_head, 1, problem.kv_len);
      keep(d_o, head, group, problem.seq_len);
    }
    if (!impl_->backward) continue;
    const auto largest_of = [&](const ConstOperand& from, std::int64_t first, std::int64_t heads, std::int64_t rows) {
      float row[256];
      float most = 0;
      for (std::int64_t h = first; h < first + heads; ++h) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t offset = sample.batch * from.batch_stride + h * from.head_stride + r * from.row_stride;
          detail::row_ops(problem.dtype)
              .to_float(static_cast<const char*>(from.data) + offset * std::int64_t(bytes), row, problem.head_dim);
          for (std::int64_t c = 0; c < problem.head_dim; ++c) most = std::max(most, std::fabs(row[c]));
        }
      }
      return double(most);
    };
    impl_->max_q = std::max(impl_->max_q, largest_of(q, head, group, problem.seq_len));
    impl_->max_k = std::max(impl_->max_k, largest_of(k, sample.kv_head, 1, problem.kv_len));
  }
  impl_->dq.floor = impl_->term * problem.scale() * impl_->max_k;
  impl_->dk.floor = impl_->key_floor(impl_->key_term);
}

Verifier::~Verifier() = default;
Verifier::Verifier(Verifier&&) noexcept = default;
Verifier& Verifier::operator=(Verifier&&) noexcept = default;

bool Verifier::sampled() const {
  return !impl_->complete;
}

CheckReport Verifier::check(const HostOutputs& outputs) const {
  const Impl& impl = *impl_;
  const AttentionProblem& p = impl.problem;
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
  const detail::RowOps& ops = detail::row_ops(p.dtype);
  CheckReport report;
  report.note = impl.note();

  const auto compare_rows = [&](Comparison& comparison, const ConstOperand& got, std::int64_t batch, std::int64_t head,
                                std::span<const std::int64_t> rows, const double* expected) {
    float values[256];
    for (const std::int64_t row : rows) {
      const std::int64_t offset = batch * got.batch_stride + head * got.head_stride + row * got.row_stride;
      ops.to_float(static_cast<const char*>(got.data) + offset * bytes, values, p.head_dim);
      for (std::int64_t c = 0; c < p.head_dim; ++c) comparison.add(values[c], *expected++, batch, head, row, c);
      comparison.end_row();
    }
  };
  const auto compare_queries = [&](const char* output, const ConstOperand& got, Expected Sample::*expected,
                                   const Scale& scale, double bias_tolerance) {
    if (got.data == nullptr) return;
    Comparison comparison(output);
    for (const Sample& sample : impl.samples) {
      const double* values = (sample.*expected).values.data();
      for (std::int64_t member = 0; member < impl.group(); ++member) {
        compare_rows(comparison, got, sample.batch, sample.kv_head * impl.group() + member, sample.queries, values);
        values += static_cast<std::int64_t>(sample.queries.size()) * p.head_dim;
      }
    }
    report.outputs.push_back(comparison.finish(scale.reference, impl.tolerance(scale), bias_tolerance));
  };

  compare_queries("o", outputs.o, &Sample::o, impl.o, impl.bias_tolerance(impl.o, false));
  if (outputs.lse != nullptr) {
    Comparison comparison("lse");
    for (const Sample& sample : impl.samples) {
      const double* expected = sample.lse.values.data();
      for (std::int64_t member = 0; member < impl.group(); ++member) {
        const std::int64_t head = sample.kv_head * impl.group() + member;
        for (const std::int64_t row : sample.queries) {
          comparison.add(outputs.lse[(sample.batch * p.num_heads + head) * p.seq_len + row], *expected++, sample.batch,
                         head, row, -1);
        }
      }
    }
    report.outputs.push_back(comparison.finish(impl.lse.reference, impl.lse_tolerance(), kInfinity));
  }
  if (!impl.backward) return report;
  compare_queries("dq", outputs.dq, &Sample::dq, impl.dq, kInfinity);

  if (outputs.dk.data == nullptr && outputs.dv.data == nullptr) return report;
  Comparison dk_comparison("dk"), dv_comparison("dv");
  Scale dk_scale = impl.dk, dv_scale = impl.dv;
  for (const Sample& sample : impl.samples) {
    if (sample.keys.empty()) continue;
    Expected dk_here, dv_here;
    if (!sample.exact_keys) {
      dk_scale.floor = std::max(dk_scale.floor, impl.key_floor(impl.evaluate_keys(sample, outputs, dk_here, dv_here)));
      measure(dk_here, dk_scale);
      measure(dv_here, dv_scale);
    }
    const Expected& dk = sample.exact_keys ? sample.dk : dk_here;
    const Expected& dv = sample.exact_keys ? sample.dv : dv_here;
    if (outputs.dk.data != nullptr) {
      compare_rows(dk_comparison, outputs.dk, sample.batch, sample.kv_head, sample.keys, dk.values.data());
    }
    if (outputs.dv.data != nullptr) {
      compare_rows(dv_comparison, outputs.dv, sample.batch, sample.kv_head, sample.keys, dv.values.data());
    }
  }
  const auto finish = [&](Comparison& comparison, const Scale& scale, const ConstOperand& got, double bias_tolerance) {
    if (got.data == nullptr) return;
    report.outputs.push_back(comparison.finish(scale.reference, impl.tolerance(scale), bias_tolerance));
  };
  finish(dk_comparison, dk_scale, outputs.dk, kInfinity);
  finish(dv_comparison, dv_scale, outputs.dv, impl.bias_tolerance(dv_scale, true));
  return report;
}

bool CheckReport::passed() const {
  return std::all_of(outputs.begin(), outputs.end(), [](const OutputCheck& check) { return check.passed; });
}

std::string CheckReport::failure() const {
  for (const OutputCheck& check : outputs) {
    if (check.passed) continue;
    char figures[160];
    if (check.max_error <= check.tolerance) {
      std::snprintf(figures, sizeof(figures), " is rounded in one direction: by %.3g of its values, allowed %.3g; ",
                    check.bias, check.bias_tolerance);
    } else {
      std::snprintf(figures, sizeof(figures), " is off by %.3g, allowed %.3g (largest %.3g); ", check.max_error,
                    check.tolerance, check.max_reference);
    }
    return check.output + figures + check.worst + (note.empty() ? "" : "; ") + note;
  }
  return "";
}

double CheckReport::max_error() const {
  double most = 0;
  for (const OutputCheck& check : outputs) {
    if (check.max_error == 0) continue;
    // LSE is a logarithm: near 0 its error is held against 1.
    const double against = check.output == "lse" ? std::max(check.max_reference, 1.0) : check.max_reference;
    most = std::max(most, check.max_error / against);
  }
  return most;
}

}  // namespace warpmeter::attention
