#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/primer/kernel.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::primer {

/// What the three softmax kernels have in common: everything but how they do it.
inline Kernel softmax_kernel() {
  Kernel kernel;
  kernel.formula = "y[i,j] = exp(x[i,j] - m[i]) / sum_k exp(x[i,k] - m[i]), m[i] = max_k x[i,k]";
  kernel.layout = "x, y (rows, cols)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 4, .cols = 200};
  kernel.inputs = [](const Problem& p) { return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}}; };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"y", {p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return 5.0 * static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t i) {
    const std::int64_t row = i / p.cols * p.cols;
    double most = in[0][row], sum = 0;
    for (std::int64_t j = 1; j < p.cols; ++j) most = std::max(most, in[0][row + j]);
    for (std::int64_t j = 0; j < p.cols; ++j) sum += std::exp(in[0][row + j] - most);
    return std::exp(in[0][i] - most) / sum;
  };
  kernel.reference_cost = [](const Problem& p) { return 8.0 * static_cast<double>(p.cols); };
  return kernel;
}

}  // namespace warpmeter::primer
