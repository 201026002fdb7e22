#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

void swiglu_forward(const Context&, const SwigluForward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.width, [&](std::int64_t row) {
    kernels.swiglu_forward(detail::at(a.gate, row * a.in_stride, bytes), detail::at(a.up, row * a.in_stride, bytes),
                           detail::at(a.out, row * a.width, bytes), a.width);
  });
}

void swiglu_backward(const Context&, const SwigluBackward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.width, [&](std::int64_t row) {
    kernels.swiglu_backward(detail::at(a.gate, row * a.in_stride, bytes), detail::at(a.up, row * a.in_stride, bytes),
                            detail::at(a.d_out, row * a.width, bytes), detail::at(a.d_gate, row * a.d_stride, bytes),
                            detail::at(a.d_up, row * a.d_stride, bytes),
                            a.out != nullptr ? detail::at(a.out, row * a.width, bytes) : nullptr, a.width);
  });
}

}  // namespace warpmeter::layers::cpu
