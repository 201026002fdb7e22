#include <algorithm>
#include <cmath>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

namespace {

constexpr std::int64_t kPiece = 1 << 16;  // that one thread scales

}  // namespace

std::size_t workspace_bytes(const GradientNorm& a) {
  return static_cast<std::size_t>(a.pieces()) * sizeof(double);
}

void gradient_norm(const Context&, const GradientNorm& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  auto* sums = static_cast<double*>(a.workspace);
  for (const GradientTensor& tensor : a.gradients) {
    detail::over_pieces(tensor.count, kSquaresPiece, [&](std::int64_t begin, std::int64_t count) {
      sums[begin / kSquaresPiece] = kernels.square_sum(detail::at(tensor.data, begin, bytes), count);
    });
    sums += (tensor.count + kSquaresPiece - 1) / kSquaresPiece;
  }
  double total = 0;
  for (const auto* sum = static_cast<const double*>(a.workspace); sum != sums; ++sum) total += *sum;
  StepState& state = *a.state;
  state.overflow = std::isfinite(total) ? 0 : 1;
  state.gradient_norm = static_cast<float>(std::sqrt(total)) / state.loss_scale;
  const float clipping = a.max_norm > 0 ? std::min(1.0f, a.max_norm / (state.gradient_norm + 1e-6f)) : 1.0f;
  state.update_scale = clipping / state.loss_scale;
}

void scale_gradients(const Context&, const ScaleGradients& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  for (const GradientTensor& tensor : a.gradients) {
    detail::over_pieces(tensor.count, kPiece, [&](std::int64_t begin, std::int64_t count) {
      kernels.scale(detail::at(tensor.data, begin, bytes), count, a.state->update_scale);
    });
  }
}

}  // namespace warpmeter::layers::cpu
