#include <algorithm>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

namespace {

/// Rows whose shares of d_weight are summed one after the other; the shape alone decides, so that the bits do not
/// depend on the number of threads.
constexpr std::int64_t kParts = 32;

std::int64_t rows_a_part(std::int64_t rows) {
  return std::max<std::int64_t>(1, (rows + kParts - 1) / kParts);
}
std::int64_t parts(std::int64_t rows) {
  return (rows + rows_a_part(rows) - 1) / rows_a_part(rows);
}

}  // namespace

void rmsnorm_forward(const Context&, const RmsNormForward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.width, [&](std::int64_t row) {
    const std::int64_t offset = row * a.width;
    const float inv_rms = kernels.rmsnorm_forward(detail::at(a.x, offset, bytes),
                                                  a.addend != nullptr ? detail::at(a.addend, offset, bytes) : nullptr,
                                                  a.addend != nullptr ? detail::at(a.sum, offset, bytes) : nullptr,
                                                  a.weight, detail::at(a.out, offset, bytes), a.width, a.epsilon);
    if (a.inv_rms != nullptr) a.inv_rms[row] = inv_rms;
  });
}

std::size_t workspace_bytes(const RmsNormBackward& a) {
  return static_cast<std::size_t>((parts(a.rows) + 1) * a.width) * sizeof(float);
}

void rmsnorm_backward(const Context&, const RmsNormBackward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const detail::RowKernels& gradients = detail::row_kernels(a.gradient_dtype);
  const std::size_t bytes = size_of(a.dtype);
  auto* shares = static_cast<float*>(a.workspace);
  const std::int64_t part_rows = rows_a_part(a.rows), count = parts(a.rows);
  detail::over_rows(count, part_rows * a.width, [&](std::int64_t part) {
    float* share = shares + part * a.width;
    std::fill_n(share, a.width, 0.0f);
    const std::int64_t end = std::min(a.rows, (part + 1) * part_rows);
    for (std::int64_t row = part * part_rows; row < end; ++row) {
      const std::int64_t offset = row * a.width;
      kernels.rmsnorm_backward(detail::at(a.s, offset, bytes), a.weight, a.inv_rms[row],
                               detail::at(a.d_out, offset, bytes),
                               a.d_residual != nullptr ? detail::at(a.d_residual, offset, bytes) : nullptr,
                               detail::at(a.d_x, offset, bytes), share, a.width);
    }
  });
  float* total = shares + count * a.width;
  if (a.accumulate) {
    gradients.to_float(a.d_weight, total, a.width);
  } else {
    std::fill_n(total, a.width, 0.0f);
  }
  const detail::RowKernels& floats = detail::row_kernels(DType::fp32);
  for (std::int64_t part = 0; part < count; ++part) floats.add_to_float(shares + part * a.width, total, a.width);
  gradients.from_float(total, a.d_weight, a.width);
}

}  // namespace warpmeter::layers::cpu
