#pragma once

#include <cstdint>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// out = silu(gate) * up with silu(x) = x / (1 + exp(-x)), in fp32, rounded once. gate and up are (rows, width) with
/// in_stride elements from row to row (they may be the halves of one product); out is dense.
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
struct SwigluForward {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::fp32;  ///< fp32, bf16 or fp16
  const void *gate = nullptr, *up = nullptr;
  std::int64_t in_stride = 0;
  void* out = nullptr;

  [[nodiscard]] double flops() const { return 5.0 * static_cast<double>(rows * width); }
  [[nodiscard]] double bytes() const {
    return 3.0 * static_cast<double>(rows * width) * static_cast<double>(size_of(dtype));
  }
};
void swiglu_forward(const Context& context, const SwigluForward& arguments);

/// d_gate = d_out * up * silu'(gate), d_up = d_out * silu(gate); with `out` not null silu(gate) * up is written there
/// again, for a backward that did not keep it. d_gate and d_up have d_stride and may be gate and up.
struct SwigluBackward {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::fp32;
  const void *gate = nullptr, *up = nullptr;
  std::int64_t in_stride = 0;
  const void* d_out = nullptr;  ///< dense; may be `out`
  void *d_gate = nullptr, *d_up = nullptr;
  std::int64_t d_stride = 0;
  void* out = nullptr;  ///< dense, or null

  [[nodiscard]] double flops() const { return (out ? 10.0 : 9.0) * static_cast<double>(rows * width); }
  [[nodiscard]] double bytes() const {
    return (out ? 6.0 : 5.0) * static_cast<double>(rows * width) * static_cast<double>(size_of(dtype));
  }
};
void swiglu_backward(const Context& context, const SwigluBackward& arguments);

}  // namespace warpmeter::layers
