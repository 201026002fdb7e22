#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/merge.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// e^(scale * (m - top)), 0 for a part that saw nothing.
float weight(float m, float top, float scale) {
  return m == kMinusInfinity ? 0.0f : std::exp(scale * (m - top));
}

/// to = a * to + b * from.
void scale_add(float* to, float a, const float* from, float b, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) to[c] = a * to[c] + b * from[c];
}

/// One row's parts.
class Row {
 public:
  Row(const Partials& partials, std::int64_t row) : p_(partials), row_(row) {}
  float& m(std::int64_t part) const { return p_.m[part * p_.row_stride + row_]; }
  float& l(std::int64_t part) const { return p_.l[part * p_.row_stride + row_]; }
  float* o(std::int64_t part) const { return p_.o + part * p_.part_stride + row_ * p_.column_stride; }

  void finish(const float* from, float m_all, float l_all, float* o, float* lse) const {
    const float inverse = l_all == 0 ? 0.0f : 1 / l_all;
    for (std::int64_t c = 0; c < p_.head_dim; ++c) o[c] = l_all == 0 ? 0.0f : from[c] * inverse;
    *lse = l_all == 0
               ? kMinusInfinity
               : static_cast<float>(static_cast<double>(m_all) * p_.scale + std::log(static_cast<double>(l_all)));
  }

  void tree(float* out, float* lse) const {
    for (std::int64_t distance = 1; distance < p_.parts; distance *= 2) {
      for (std::int64_t i = 0; i + distance < p_.parts; i += 2 * distance) {
        const std::int64_t j = i + distance;
        const float top = std::max(m(i), m(j));
        const float a = weight(m(i), top, p_.scale);
        const float b = weight(m(j), top, p_.scale);
        scale_add(o(i), a, o(j), b, p_.head_dim);
        l(i) = a * l(i) + b * l(j);
        m(i) = top;
      }
    }
    finish(o(0), m(0), l(0), out, lse);
  }

  void lse(float* out, float* lse_out) const {
    // From (o, m, l) to (O, S): S in m, its rest in l.
    for (std::int64_t i = 0; i < p_.parts; ++i) {
      const double sum = l(i);
      const float inverse = l(i) == 0 ? 0.0f : 1 / l(i);
      float* const values = o(i);
      for (std::int64_t c = 0; c < p_.head_dim; ++c) values[c] *= inverse;
      if (l(i) == 0) {
        m(i) = kMinusInfinity;
        l(i) = 0;
        continue;
      }
      const double s = static_cast<double>(m(i)) * p_.scale + std::log(sum);
      m(i) = static_cast<float>(s);
      l(i) = static_cast<float>(s - m(i));
    }
    // Step one: S. A part that is NaN has seen something.
    float top = kMinusInfinity;
    bool seen = false;
    for (std::int64_t i = 0; i < p_.parts; ++i) {
      top = std::max(top, m(i));
      seen = seen || m(i) != kMinusInfinity;
    }
    std::fill_n(out, p_.head_dim, 0.0f);
    if (!seen) {
      *lse_out = kMinusInfinity;
      return;
    }
    const auto above = [&](std::int64_t i) { return (static_cast<double>(m(i)) - top) + l(i); };  // S_i - top
    double sum = 0;
    for (std::int64_t i = 0; i < p_.parts; ++i) sum += m(i) == kMinusInfinity ? 0.0 : std::exp(above(i));
    const double rest = std::log(sum);
    // Step two: O.
    for (std::int64_t i = 0; i < p_.parts; ++i) {
      if (m(i) != kMinusInfinity) {
        scale_add(out, 1.0f, o(i), static_cast<float>(std::exp(above(i) - rest)), p_.head_dim);
      }
    }
    *lse_out = static_cast<float>(top + rest);
  }

  void two_pass(float* out, float* lse) const {
    float top = kMinusInfinity;
    for (std::int64_t b = 0; b < p_.parts; ++b) top = std::max(top, m(b));
    float sum = 0;
    float* const total = o(0);
    for (std::int64_t b = 0; b < p_.parts; ++b) {
      const float w = weight(m(b), top, p_.scale);
      sum += w * l(b);
      scale_add(total, b == 0 ? w : 1.0f, o(b), b == 0 ? 0.0f : w, p_.head_dim);
    }
    finish(total, top, sum, out, lse);
  }

 private:
  const Partials& p_;
  std::int64_t row_;
};

}  // namespace

std::optional<Merge> parse_merge(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kMergeNames.size(); ++i) {
    if (kMergeNames[i] == text) return static_cast<Merge>(i);
  }
  return std::nullopt;
}

void merge_cpu(Merge merge, const Partials& partials, float* o, std::int64_t o_stride, float* lse) {
  WM_CHECK(partials.parts >= 1, "nothing to merge");
  for (std::int64_t r = 0; r < partials.rows; ++r) {
    const Row row(partials, r);
    float* const out = o + r * o_stride;
    switch (merge) {
      case Merge::tree:
        row.tree(out, lse + r);
        break;
      case Merge::lse:
        row.lse(out, lse + r);
        break;
      case Merge::two_pass:
        row.two_pass(out, lse + r);
        break;
      case Merge::sequential:
        WM_CHECK(partials.parts == 1, "a sequential stream has one part, not " + std::to_string(partials.parts));
        row.finish(row.o(0), row.m(0), row.l(0), out, lse + r);
        break;
    }
  }
}

}  // namespace warpmeter::attention
