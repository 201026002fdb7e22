#pragma once

#include "kernels/data_parallel/toy_mlp.hpp"

#ifdef __CUDACC__
#define WM_TOY_INLINE __host__ __device__ inline
#else
#define WM_TOY_INLINE inline
#endif

namespace warpmeter::data_parallel::detail {

// What one element of each result is: the same on the CPU and in CUDA.

WM_TOY_INLINE void element(const ToyLinear& a, std::int64_t index) {
  const std::int64_t row = index / a.out, column = index % a.out;
  float sum = a.bias[column];
  for (std::int64_t i = 0; i < a.in; ++i) sum += a.x[row * a.in + i] * a.weight[column * a.in + i];
  a.y[index] = a.relu && !(sum > 0) ? 0.0f : sum;
}

/// Elements of d_weight, then of d_bias.
WM_TOY_INLINE void element(const ToyLinearWeightGradient& a, std::int64_t index) {
  const bool bias = index >= a.in * a.out;
  float* const to = bias ? a.d_bias : a.d_weight;
  if (to == nullptr) return;
  const std::int64_t column = bias ? index - a.in * a.out : index / a.in;
  float sum = 0;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const float d = a.d_y[row * a.out + column];
    sum += bias ? d : d * a.x[row * a.in + index % a.in];
  }
  const std::int64_t place = bias ? column : index;
  to[place] = a.accumulate ? to[place] + sum : sum;
}

WM_TOY_INLINE void element(const ToyLinearInputGradient& a, std::int64_t index) {
  const std::int64_t row = index / a.in, column = index % a.in;
  float sum = 0;
  for (std::int64_t o = 0; o < a.out; ++o) sum += a.d_y[row * a.out + o] * a.weight[o * a.in + column];
  a.d_x[index] = a.x[index] > 0 ? sum : 0.0f;
}

WM_TOY_INLINE std::int64_t elements(const ToyLinear& a) {
  return a.rows * a.out;
}
WM_TOY_INLINE std::int64_t elements(const ToyLinearWeightGradient& a) {
  return (a.in + 1) * a.out;
}
WM_TOY_INLINE std::int64_t elements(const ToyLinearInputGradient& a) {
  return a.rows * a.in;
}

/// One thread does it all: some hundred numbers.
WM_TOY_INLINE void whole(const ToyLoss& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) {
    const float difference = a.y[i] - a.target[i];
    sum += static_cast<double>(difference) * static_cast<double>(difference);
    a.y[i] = a.scale * difference;
  }
  *a.loss = static_cast<float>(sum / static_cast<double>(a.count));
}

}  // namespace warpmeter::data_parallel::detail
