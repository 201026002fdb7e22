#include "tests/kernels/attention/emulated_flash.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/detail/row_ops.hpp"

namespace warpmeter::attention::conformance {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.4426950408889634f;
constexpr std::int64_t kTile = 64;  // keys

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// Rows of one head as floats.
class Head {
 public:
  template <class Pointer>
  Head(const AttentionProblem& p, const BasicOperand<Pointer>& from, std::int64_t batch, std::int64_t head,
       std::int64_t rows)
      : dim_(p.head_dim), values_(at(rows * p.head_dim)) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t offset = batch * from.batch_stride + head * from.head_stride + r * from.row_stride;
      detail::row_ops(p.dtype).to_float(static_cast<const char*>(from.data) + offset * std::int64_t(size_of(p.dtype)),
                                        row(r), dim_);
    }
  }
  Head(const AttentionProblem& p, std::int64_t rows) : dim_(p.head_dim), values_(at(rows * p.head_dim)) {}

  [[nodiscard]] float* row(std::int64_t r) { return values_.data() + r * dim_; }
  [[nodiscard]] const float* row(std::int64_t r) const { return values_.data() + r * dim_; }

  void store(const AttentionProblem& p, const Operand& to, std::int64_t batch, std::int64_t head, float factor) {
    for (float& x : values_) x *= factor;
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(values_.size()) / dim_; ++r) {
      const std::int64_t offset = batch * to.batch_stride + head * to.head_stride + r * to.row_stride;
      detail::row_ops(p.dtype).from_float(row(r), static_cast<char*>(to.data) + offset * std::int64_t(size_of(p.dtype)),
                                          dim_);
    }
  }

 private:
  std::int64_t dim_;
  std::vector<float> values_;
};

float dot(const float* a, const float* b, std::int64_t count) {
  float sum = 0;
  for (std::int64_t c = 0; c < count; ++c) sum += a[c] * b[c];  // two 16-bit numbers: exact but for the sum
  return sum;
}
/// As tensor cores with eight products an instruction: their sum and the one so far are added, and cut.
float dot_by_eight(const float* a, const float* b, std::int64_t count) {
  float sum = 0;
  for (std::int64_t c = 0; c < count; c += 8) {
    double exact = sum;
    for (std::int64_t i = c; i < std::min(c + 8, count); ++i) exact += double(a[i]) * b[i];
    sum = static_cast<float>(exact);
    if (std::fabs(double(sum)) > std::fabs(exact)) sum = std::nextafter(sum, 0.0f);
  }
  return sum;
}
void add(float* to, float factor, const float* from, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) to[c] += factor * from[c];
}

/// The key that the last query sees most of.
std::int64_t best_key(const AttentionProblem& p, const Head& q, const Head& k) {
  std::int64_t best = 0;
  float most = -kInfinity;
  for (std::int64_t j = 0; j < p.kv_len; ++j) {
    const float s = dot(q.row(p.seq_len - 1), k.row(j), p.head_dim);
    if (s > most) best = j, most = s;
  }
  return best;
}

template <class Body>
void for_query_heads(const AttentionProblem& p, Body body) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.num_heads; ++h) body(b, h);
  }
}

}  // namespace

std::optional<std::string> EmulatedFlash::unsupported(const AttentionProblem& problem, Pass /*pass*/) const {
  if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
  if (!is_16bit(problem.dtype)) return "bf16 and fp16 only";
  return std::nullopt;
}

std::int64_t EmulatedFlash::visible_keys(const AttentionProblem& problem, std::int64_t query) const {
  const std::int64_t visible = problem.visible_keys(query);
  return fault_ == Fault::mask_moved && problem.causal ? std::min(visible + 1, problem.kv_len) : visible;
}

float EmulatedFlash::rounded(DType dtype, float p) const {
  const int bits = dtype == DType::bf16 ? 8 : 11;
  const int lowest = dtype == DType::bf16 ? -133 : -24;  // the exponent of the smallest subnormal
  int exponent = 0;
  std::frexp(p, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - bits, lowest));
  const double units = double(p) / unit;
  return static_cast<float>((fault_ == Fault::p_cut ? std::floor(units) : std::nearbyint(units)) * unit);
}

std::unique_ptr<Saved> EmulatedFlash::forward(const Context& /*context*/, const AttentionProblem& p,
                                              const ForwardArguments& arguments, bool /*for_backward*/) const {
  const auto scale = static_cast<float>(p.scale());
  const float scale_log2 = scale * kLog2e;
  for_query_heads(p, [&](std::int64_t b, std::int64_t h) {
    const Head q(p, arguments.q, b, h, p.seq_len), k(p, arguments.k, b, h / p.group_size(), p.kv_len),
        v(p, arguments.v, b, h / p.group_size(), p.kv_len);
    Head o(p, p.seq_len);
    const std::int64_t dropped = fault_ == Fault::key_dropped ? best_key(p, q, k) : -1;
    for (std::int64_t i = 0; i < p.seq_len; ++i) {
      float maximum = -kInfinity, shift = 0, sum = 0;
      float* const out = o.row(i);
      for (std::int64_t first = (p.kv_len - 1) / kTile * kTile; first >= 0; first -= kTile) {
        float s[kTile];
        float largest = maximum;
        const std::int64_t count = std::min(kTile, p.kv_len - first);
        for (std::int64_t j = 0; j < count; ++j) {
          const bool seen = first + j < visible_keys(p, i) && first + j != dropped;
          s[j] = seen ? dot(q.row(i), k.row(first + j), p.head_dim) : -kInfinity;
          largest = std::max(largest, s[j]);
        }
        const float slack = maximum_ == Maximum::lagging ? 8.0f : 0.0f;
        if ((largest - maximum) * scale_log2 > slack) {
          const float new_shift = largest * scale_log2;
          const float rescale = maximum == -kInfinity ? 0.0f : std::exp2(shift - new_shift);
          sum *= rescale;
          if (fault_ != Fault::maximum_stale) {
            for (std::int64_t c = 0; c < p.head_dim; ++c) out[c] *= rescale;
          }
          maximum = largest;
          shift = new_shift;
        }
        for (std::int64_t j = 0; j < count; ++j) {
          if (s[j] == -kInfinity) continue;
          const float e = std::exp2(std::fma(s[j], scale_log2, -shift));
          sum += e;
          add(out, rounded(p.dtype, e), v.row(first + j), p.head_dim);
        }
      }
      for (std::int64_t c = 0; c < p.head_dim; ++c) out[c] = sum == 0 ? 0.0f : out[c] / sum;
      float& lse = arguments.lse[(b * p.num_heads + h) * p.seq_len + i];
      // What the shift lost in rounding is in the sum.
      const float rest = std::fma(maximum, scale_log2, -shift) / kLog2e;
      lse = sum == 0 ? -kInfinity : std::fma(maximum, scale, std::log(sum) - rest);
      if (fault_ == Fault::lse_rounded && sum != 0) lse = rounded(p.dtype, std::fabs(lse)) * (lse < 0 ? -1.0f : 1.0f);
    }
    o.store(p, arguments.o, b, h, 1.0f);
  });
  return nullptr;
}

void EmulatedFlash::backward(const Context& /*context*/, const AttentionProblem& p, const BackwardArguments& arguments,
                             const Saved* /*saved*/) const {
  const auto scale = static_cast<float>(p.scale());
  const float scale_log2 = scale * kLog2e;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t g = 0; g < p.num_kv_heads; ++g) {
      const Head k(p, arguments.k, b, g, p.kv_len), v(p, arguments.v, b, g, p.kv_len);
      Head dk(p, p.kv_len), dv(p, p.kv_len);
      for (std::int64_t h = g * p.group_size(); h < (g + 1) * p.group_size(); ++h) {
        const Head q(p, arguments.q, b, h, p.seq_len), o(p, arguments.o, b, h, p.seq_len),
            d_o(p, arguments.d_o, b, h, p.seq_len);
        Head dq(p, p.seq_len);
        const std::int64_t dropped = fault_ == Fault::key_dropped ? best_key(p, q, k) : -1;
        for (std::int64_t i = 0; i < p.seq_len; ++i) {
          const float lse_log2 = arguments.lse[(b * p.num_heads + h) * p.seq_len + i] * kLog2e;
          const float d = fault_ == Fault::d_left_out ? 0.0f : dot(o.row(i), d_o.row(i), p.head_dim);
          for (std::int64_t j = 0; j < visible_keys(p, i); ++j) {
            if (j == dropped) continue;
            const auto sum = fault_ == Fault::scores_differ ? dot_by_eight : dot;
            const float s = sum(q.row(i), k.row(j), p.head_dim);
            const float weight = rounded(p.dtype, std::exp2(std::fma(s, scale_log2, -lse_log2)));
            const float slope = weight * (dot(d_o.row(i), v.row(j), p.head_dim) - d);
            const float ds = std::copysign(EmulatedFlash(maximum_).rounded(p.dtype, std::fabs(slope)), slope);
            add(dv.row(j), weight, d_o.row(i), p.head_dim);
            add(dk.row(j), ds, q.row(i), p.head_dim);
            add(dq.row(i), ds, k.row(j), p.head_dim);
          }
        }
        dq.store(p, arguments.dq, b, h, scale);
      }
      dk.store(p, arguments.dk, b, g, scale);
      dv.store(p, arguments.dv, b, g, 1.0f);
    }
  }
}

}  // namespace warpmeter::attention::conformance
