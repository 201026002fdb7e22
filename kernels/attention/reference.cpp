#include "kernels/attention/reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/detail/weighted_sum.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention {

namespace {

using detail::parallel_for_work;
using detail::weighted_sum;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rounds to nearest even with `kBits` significant bits, subnormals from 2^kMinExponent down, infinity past the top.
template <int kBits, int kMinExponent, int kMaxExponent>
struct RoundedTo {
  static constexpr double kUnitRoundoff = 1.0 / (1 << kBits);
  double operator()(double x) const {
    constexpr int kBias = 1023;
    const auto exponent = static_cast<int>((std::bit_cast<std::uint64_t>(x) >> 52) & 0x7FF);
    if (exponent > kMaxExponent + kBias) return std::isnan(x) ? x : std::copysign(kInfinity, x);
    // Adding 1.5 * 2^52 units of the last place leaves no bits below it.
    const int shift = std::max(exponent, kMinExponent + kBias) - (kBits - 1) + 52;
    const double magic = std::bit_cast<double>((static_cast<std::uint64_t>(shift) << 52) | (std::uint64_t{1} << 51));
    const double rounded = (x + magic) - magic;
    return std::fabs(rounded) < std::ldexp(1.0, kMaxExponent + 1) ? rounded : std::copysign(kInfinity, x);
  }
};
using RoundedToBf16 = RoundedTo<8, -126, 127>;
using RoundedToFp16 = RoundedTo<11, -14, 15>;

/// What happens to the results of the formula's steps: nothing.
struct ExactSteps {
  static constexpr bool kFp32Sums = false;
  [[nodiscard]] double score(double product, double scale) const { return product * scale; }
  [[nodiscard]] double probability(double p) const { return p; }
  /// What P is multiplied by where it is made from LSE.
  [[nodiscard]] double from_lse(double /*lse*/) const { return 1; }
  [[nodiscard]] double dp(double dp) const { return dp; }
  [[nodiscard]] double ds(double ds, double scale) const { return ds * scale; }
  [[nodiscard]] double result(double x) const { return x; }
};

/// ScorePrecision::storage.
template <class Round>
struct StoredSteps {
  static constexpr bool kFp32Sums = false;
  [[nodiscard]] double score(double product, double scale) const { return round(round(product) * scale); }
  [[nodiscard]] double probability(double p) const { return round(p); }
  [[nodiscard]] double from_lse(double /*lse*/) const { return 1; }
  [[nodiscard]] double dp(double dp) const { return round(dp); }
  [[nodiscard]] double ds(double ds, double scale) const { return round(round(ds) * scale); }
  [[nodiscard]] double result(double x) const { return round(x); }
  Round round;
};

/// ScorePrecision::fp32; reference.hpp says why.
template <class Round>
struct Fp32Steps {
  static constexpr bool kFp32Sums = true;
  static constexpr double kOffGrid = 1 + Round::kUnitRoundoff;
  static constexpr double kLseRoundings = 1.5 * 0x1p-24;
  [[nodiscard]] double score(double product, double scale) const { return product * scale; }
  [[nodiscard]] double probability(double p) const { return round(p * kOffGrid) / kOffGrid; }
  [[nodiscard]] double from_lse(double lse) const { return std::exp(kLseRoundings * std::fabs(lse)); }
  [[nodiscard]] double dp(double dp) const { return dp; }
  [[nodiscard]] double ds(double ds, double scale) const { return round(ds) * scale; }
  [[nodiscard]] double result(double x) const { return round(x); }
  Round round;
};

/// To fp32, towards zero.
double cut_to_fp32(double x) {
  constexpr std::uint64_t kBelow = (std::uint64_t{1} << 29) - 1;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & ~kBelow);
}

/// Hands out parts of the workspace; without one it only counts.
class Workspace {
 public:
  explicit Workspace(double* base) : base_(base) {}
  std::span<double> take(std::int64_t count) {
    const std::size_t begin = used_, size = static_cast<std::size_t>(count);
    used_ += size;
    return base_ == nullptr ? std::span<double>(static_cast<double*>(nullptr), 0) : std::span(base_ + begin, size);
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  double* base_;
  std::size_t used_ = 0;
};

/// A matrix of one head both ways round: rows for sums over rows, columns for products with a row.
struct HeadMatrix {
  std::span<double> rows;     ///< (count, head_dim)
  std::span<double> columns;  ///< (head_dim, stride)
};

struct Layout {
  std::int64_t group, queries, keys, dim;
  std::int64_t query_stride, key_stride;  // of columns: odd multiples of a cache line, so that rows do not collide
  ReferenceResult result;
  HeadMatrix q, d_o, k, v;
  std::span<double> lse, d;     // of all queries of one head
  std::span<double> scratch;    // per worker
  std::int64_t scratch_stride;  // doubles a worker
  std::int64_t scratch_part;    // doubles of each of its two long rows
};

std::int64_t padded(std::int64_t count) {
  return (count + 7) / 16 * 16 + 8;
}

Layout lay_out(const AttentionProblem& p, const ReferenceRequest& request, Workspace& workspace) {
  Layout l{};
  l.group = p.group_size();
  l.queries = static_cast<std::int64_t>(request.queries.size());
  l.keys = static_cast<std::int64_t>(request.keys.size());
  l.dim = p.head_dim;
  l.query_stride = padded(p.seq_len);
  l.key_stride = padded(p.kv_len);
  const std::int64_t query_rows = l.group * l.queries;
  l.result.o = workspace.take(query_rows * l.dim);
  l.result.lse = workspace.take(query_rows);
  if (request.backward) {
    l.result.dq = workspace.take(query_rows * l.dim);
    l.result.dk = workspace.take(l.keys * l.dim);
    l.result.dv = workspace.take(l.keys * l.dim);
  }
  const auto matrix = [&](std::int64_t count, std::int64_t stride) {
    return HeadMatrix{workspace.take(count * l.dim), workspace.take(stride * l.dim)};
  };
  l.k = matrix(p.kv_len, l.key_stride);
  l.v = matrix(p.kv_len, l.key_stride);
  if (l.keys > 0) {
    l.q = matrix(p.seq_len, l.query_stride);
    l.d_o = matrix(p.seq_len, l.query_stride);
    l.lse = workspace.take(p.seq_len);
    l.d = workspace.take(p.seq_len);
  }
  l.scratch_part = std::max(l.query_stride, l.key_stride);
  l.scratch_stride = 2 * l.scratch_part + 2 * l.dim + 8;
  l.scratch = workspace.take(num_threads() * l.scratch_stride);
  return l;
}

/// Evaluates one request; Steps is applied to the result of every step of the formula.
template <class Steps>
class Evaluation {
 public:
  Evaluation(const AttentionProblem& problem, const ReferenceInputs& inputs, const ReferenceRequest& request,
             Layout layout)
      : p_(problem),
        inputs_(inputs),
        request_(request),
        l_(layout),
        terms_(static_cast<std::size_t>(num_threads())),
        products_(terms_.size()),
        key_squares_(request.keys.size()) {}

  ReferenceResult run() {
    load(inputs_.k, request_.kv_head, p_.kv_len, l_.k, l_.key_stride);
    load(inputs_.v, request_.kv_head, p_.kv_len, l_.v, l_.key_stride);
    std::fill(l_.result.dk.begin(), l_.result.dk.end(), 0.0);
    std::fill(l_.result.dv.begin(), l_.result.dv.end(), 0.0);
    for (std::int64_t member = 0; member < l_.group; ++member) {
      if (l_.keys > 0) {
        load(inputs_.q, query_head(member), p_.seq_len, l_.q, l_.query_stride);
        load(inputs_.d_o, query_head(member), p_.seq_len, l_.d_o, l_.query_stride);
      }
      query_rows(member);
      if (l_.keys > 0) key_rows();
    }
    for (double& x : l_.result.dk) x = steps_.result(x);
    for (double& x : l_.result.dv) x = steps_.result(x);
    l_.result.largest_term = *std::max_element(terms_.begin(), terms_.end());
    l_.result.largest_product = *std::max_element(products_.begin(), products_.end());
    for (const double squares : key_squares_) {
      l_.result.largest_key_term = std::max(l_.result.largest_key_term, std::sqrt(squares));
    }
    return l_.result;
  }

 private:
  [[nodiscard]] std::int64_t query_head(std::int64_t member) const { return request_.kv_head * l_.group + member; }

  void load_row(const ConstOperand& from, std::int64_t head, std::int64_t row, double* out) const {
    float values[256];
    const std::int64_t offset = request_.batch * from.batch_stride + head * from.head_stride + row * from.row_stride;
    const auto bytes = static_cast<std::int64_t>(size_of(p_.dtype));
    detail::row_ops(p_.dtype).to_float(static_cast<const char*>(from.data) + offset * bytes, values, l_.dim);
    std::copy_n(values, l_.dim, out);
  }

  void load(const ConstOperand& from, std::int64_t head, std::int64_t count, const HeadMatrix& to,
            std::int64_t stride) const {
    constexpr std::int64_t kRows = 64;
    parallel_for_work((count + kRows - 1) / kRows, static_cast<double>(kRows * l_.dim), [&](std::int64_t block, int) {
      const std::int64_t begin = block * kRows, end = std::min(count, begin + kRows);
      for (std::int64_t row = begin; row < end; ++row) load_row(from, head, row, &to.rows[at(row * l_.dim)]);
      for (std::int64_t c = 0; c < l_.dim; ++c) {
        for (std::int64_t row = begin; row < end; ++row)
          to.columns[at(c * stride + row)] = to.rows[at(row * l_.dim + c)];
      }
    });
  }

  /// out[j] = row . column j, as `Steps` adds up; `partial` has room for `count` as well.
  void products(const double* row, const double* columns, std::int64_t stride, double* out, double* partial,
                std::int64_t count) const {
    if constexpr (Steps::kFp32Sums) {
      constexpr std::int64_t kAtOnce = 16;
      std::fill_n(out, count, 0.0);
      for (std::int64_t c = 0; c < l_.dim; c += kAtOnce) {
        weighted_sum(row + c, columns + c * stride, stride, std::min(kAtOnce, l_.dim - c), partial, count);
        for (std::int64_t j = 0; j < count; ++j) out[j] = cut_to_fp32(out[j] + partial[j]);
      }
    } else {
      weighted_sum(row, columns, stride, l_.dim, out, count);
    }
  }

  /// The wanted queries, and every query that sees a wanted key when its LSE and D are not known.
  void query_rows(std::int64_t member) {
    std::int64_t first_needed = p_.seq_len;
    if (l_.keys > 0 && request_.known_lse == nullptr) {
      first_needed = first_query(request_.keys.front());
    } else if (l_.keys > 0) {
      std::copy_n(request_.known_lse + member * p_.seq_len, p_.seq_len, l_.lse.begin());
      std::copy_n(request_.known_d + member * p_.seq_len, p_.seq_len, l_.d.begin());
    }
    const auto later = std::lower_bound(request_.queries.begin(), request_.queries.end(), first_needed);
    const std::int64_t before = later - request_.queries.begin();
    parallel_for_work(before + (p_.seq_len - first_needed), row_ns(p_.kv_len), [&](std::int64_t index, int worker) {
      const std::int64_t query = index < before ? request_.queries[at(index)] : first_needed + (index - before);
      const auto found = std::lower_bound(request_.queries.begin(), request_.queries.end(), query);
      const bool wanted = found != request_.queries.end() && *found == query;
      query_row(member, query, wanted ? found - request_.queries.begin() : -1, query >= first_needed, worker);
    });
  }

  /// One query: `place` is its index among the wanted ones, -1 when only LSE and D are.
  void query_row(std::int64_t member, std::int64_t query, std::int64_t place, bool keep_statistics, int worker) {
    double* s = &l_.scratch[at(worker * l_.scratch_stride)];
    double* dp = s + l_.scratch_part;
    double* row = dp + l_.scratch_part;
    double* output = row + l_.dim;
    const std::int64_t visible = p_.visible_keys(query);
    const std::int64_t result = member * l_.queries + place;

    load_row(inputs_.q, query_head(member), query, row);
    products(row, l_.k.columns.data(), l_.key_stride, s, dp, visible);
    double largest = -kInfinity, sum = 0;
    for (std::int64_t j = 0; j < visible; ++j) {
      products_[at(worker)] = std::max(products_[at(worker)], std::fabs(s[j]));
      s[j] = steps_.score(s[j], scale_);
      largest = std::max(largest, s[j]);
    }
    for (std::int64_t j = 0; j < visible; ++j) {
      s[j] = std::exp(s[j] - largest);
      sum += s[j];
    }
    double* p = s;
    for (std::int64_t j = 0; j < visible; ++j) p[j] = steps_.probability(p[j] / sum);
    const double lse = visible > 0 ? largest + std::log(sum) : -kInfinity;
    if (place >= 0) {
      weighted_sum(p, l_.v.rows.data(), l_.dim, visible, output, l_.dim);
      for (std::int64_t c = 0; c < l_.dim; ++c)
        l_.result.o[at(result * l_.dim + c)] = output[c] = steps_.result(output[c]);
      l_.result.lse[at(result)] = lse;
    }
    if (!request_.backward) return;

    load_row(inputs_.d_o, query_head(member), query, row);
    weighted_sum(row, l_.v.columns.data(), l_.key_stride, l_.dim, dp, visible);
    double d = 0;
    for (std::int64_t j = 0; j < visible; ++j) {
      dp[j] = steps_.dp(dp[j]);
      d += p[j] * dp[j];
    }
    if (keep_statistics) {
      l_.lse[at(query)] = lse;
      l_.d[at(query)] = d;
    }
    if (place < 0) return;
    double norm = 0;
    for (std::int64_t c = 0; c < l_.dim; ++c) norm += (output[c] * row[c]) * (output[c] * row[c]);
    norm = std::sqrt(norm);
    const double from_lse = steps_.from_lse(lse);
    double* ds = s;
    for (std::int64_t j = 0; j < visible; ++j) {
      terms_[at(worker)] = std::max(terms_[at(worker)], p[j] * (std::fabs(dp[j]) + norm));
      ds[j] = steps_.ds(p[j] * from_lse * (dp[j] - d), scale_);
    }
    weighted_sum(ds, l_.k.rows.data(), l_.dim, visible, output, l_.dim);
    for (std::int64_t c = 0; c < l_.dim; ++c) l_.result.dq[at(result * l_.dim + c)] = steps_.result(output[c]);
  }

  /// Adds one query head's part to every wanted row of dk and dv.
  void key_rows() {
    parallel_for_work(l_.keys, row_ns(p_.seq_len), [&](std::int64_t index, int worker) {
      double* p = &l_.scratch[at(worker * l_.scratch_stride)];
      double* ds = p + l_.scratch_part;
      double* sum = ds + l_.scratch_part;
      const std::int64_t key = request_.keys[at(index)];
      const std::int64_t first = first_query(key), count = p_.seq_len - first;
      products(&l_.k.rows[at(key * l_.dim)], l_.q.columns.data() + first, l_.query_stride, p, ds, count);
      weighted_sum(&l_.v.rows[at(key * l_.dim)], l_.d_o.columns.data() + first, l_.query_stride, l_.dim, ds, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const double lse = l_.lse[at(first + i)];
        p[i] = steps_.probability(std::exp(steps_.score(p[i], scale_) - lse) * steps_.from_lse(lse));
        const double dp = steps_.dp(ds[i]), d = l_.d[at(first + i)];
        const double term = p[i] * (std::fabs(dp) + std::fabs(d));
        key_squares_[at(index)] += term * term;
        ds[i] = steps_.ds(p[i] * (dp - d), scale_);
      }
      weighted_sum(p, l_.d_o.rows.data() + first * l_.dim, l_.dim, count, sum, l_.dim);
      for (std::int64_t c = 0; c < l_.dim; ++c) l_.result.dv[at(index * l_.dim + c)] += sum[c];
      weighted_sum(ds, l_.q.rows.data() + first * l_.dim, l_.dim, count, sum, l_.dim);
      for (std::int64_t c = 0; c < l_.dim; ++c) l_.result.dk[at(index * l_.dim + c)] += sum[c];
    });
  }

  /// The first query that sees `key`; seq_len when none does.
  [[nodiscard]] std::int64_t first_query(std::int64_t key) const {
    if (!p_.causal) return 0;
    return std::clamp<std::int64_t>(key - (p_.kv_len - p_.seq_len), 0, p_.seq_len);
  }

  /// About the time of a row of four products and an exponential with `others` rows.
  [[nodiscard]] double row_ns(std::int64_t others) const { return static_cast<double>(others * (l_.dim + 4)); }

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  const AttentionProblem& p_;
  const ReferenceInputs& inputs_;
  const ReferenceRequest& request_;
  Layout l_;
  std::vector<double> terms_;        // largest_term, a worker each
  std::vector<double> products_;     // largest_product, a worker each
  std::vector<double> key_squares_;  // the sum under largest_key_term's root, a wanted key each
  double scale_ = p_.scale();
  Steps steps_;
};

}  // namespace

std::size_t reference_workspace(const AttentionProblem& problem, const ReferenceRequest& request) {
  Workspace counting(nullptr);
  static_cast<void>(lay_out(problem, request, counting));
  return counting.used();
}

ReferenceResult evaluate_reference(const AttentionProblem& problem, const ReferenceInputs& inputs,
                                   const ReferenceRequest& request, double* workspace) {
  WM_CHECK(invalid_reason(problem).empty(), invalid_reason(problem));
  WM_CHECK(request.backward || request.keys.empty(), "rows of dk and dv need the backward");
  WM_CHECK(!request.backward || inputs.d_o.data != nullptr, "the backward needs d_o");
  Workspace parts(workspace);
  const Layout layout = lay_out(problem, request, parts);
  const auto run = [&]<class Steps>(Steps*) { return Evaluation<Steps>(problem, inputs, request, layout).run(); };
  const auto rounded = [&]<class Round>(Round*) {
    return request.scores == ScorePrecision::storage ? run(static_cast<StoredSteps<Round>*>(nullptr))
                                                     : run(static_cast<Fp32Steps<Round>*>(nullptr));
  };
  switch (request.rounding) {
    case Rounding::none:
      return run(static_cast<ExactSteps*>(nullptr));
    case Rounding::bf16:
      return rounded(static_cast<RoundedToBf16*>(nullptr));
    case Rounding::fp16:
      return rounded(static_cast<RoundedToFp16*>(nullptr));
  }
  WM_CHECK(false, "no such rounding");
}

ReferenceCosts reference_costs(const AttentionProblem& problem, bool backward) {
  constexpr double kExponential = 16;
  const double pairs = static_cast<double>(problem.group_size()) * static_cast<double>(problem.visible_pairs());
  const auto dim = static_cast<double>(problem.head_dim);
  ReferenceCosts costs;
  costs.query_row = pairs / static_cast<double>(problem.seq_len) * ((backward ? 4 : 2) * dim + kExponential);
  costs.key_row = backward ? pairs / static_cast<double>(problem.kv_len) * (4 * dim + kExponential) : 0.0;
  costs.statistics = backward ? pairs * (2 * dim + kExponential) : 0.0;
  return costs;
}

}  // namespace warpmeter::attention
