#pragma once

#include "kernels/primer/detail/cpu.hpp"

namespace warpmeter::primer::cpu_tools::WM_ISA {

/// A row of weights: dequantized as the formula says, or multiplied with a column of y as they are.
template <class T>
struct Int4Row {
  const std::uint32_t *words, *offsets;
  const T* scales;

  Int4Row(const Problem& p, const Arguments& a, std::int64_t row) {
    const std::int64_t groups = (p.inner + p.group_size - 1) / p.group_size;
    words = a.input<std::uint32_t>(0) + row * ((p.inner + 7) / 8);
    scales = a.input<T>(1) + row * groups;
    offsets = a.input<std::uint32_t>(2) + row * ((groups + 7) / 8);
  }
  [[nodiscard]] float offset(std::int64_t group) const {
    return static_cast<float>(offsets[group / 8] >> (4 * (group % 8)) & 0xF);
  }

  void dequantize(const Problem& p, float* out) const {
    for (std::int64_t k = 0; k < p.inner; ++k) {
      const std::int64_t group = k / p.group_size;
      const auto weight = static_cast<float>(words[k / 8] >> (4 * (k % 8)) & 0xF);
      out[k] = to_float(scales[group]) * (weight - offset(group));
    }
  }

  /// sum_k scale * (w - offset) * y. `turned` has y's elements so that lane l, nibble n of kWidth words is at
  /// [8 * kWidth * chunk + kWidth * n + l]; whole chunks of 8 * kWidth lie within a group.
  [[nodiscard]] float multiply(const Problem& p, const float* turned) const {
    Vec sums[2] = {};
    for (std::int64_t k = 0; k < p.inner; k += 8 * kWidth) {
      UintVec of_words;
      __builtin_memcpy(&of_words, words + k / 8, sizeof(of_words));
      const Vec base = broadcast(offset(k / p.group_size));
      Vec products[2] = {};
#pragma GCC unroll 8
      for (int n = 0; n < 8; ++n) {
        const Vec weights = __builtin_convertvector(bit_cast_vec<IntVec>(of_words >> (4 * n) & 0xFu), Vec) - base;
        products[n % 2] = fma(weights, load(turned + k + kWidth * n), products[n % 2]);
      }
      const Vec scale = broadcast(to_float(scales[k / p.group_size]));
      for (int n = 0; n < 2; ++n) sums[n] = fma(products[n], scale, sums[n]);
    }
    return reduce_add(sums[0] + sums[1]);
  }
};

}  // namespace warpmeter::primer::cpu_tools::WM_ISA
