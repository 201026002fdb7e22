#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

inline constexpr float kRmsNormEpsilon = 1e-5f;

/// s = x + addend (rounded to dtype; without addend s = x), out = s * inv_rms * weight by rows, with
/// inv_rms = 1 / sqrt(mean(s^2) + epsilon). Arithmetic is fp32, each result rounded once. All matrices are dense
/// (rows, width).
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
struct RmsNormForward {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::fp32;  ///< of x, addend, sum, weight and out: fp32, bf16 or fp16
  float epsilon = kRmsNormEpsilon;
  const void* x = nullptr;
  const void* addend = nullptr;  ///< null: no residual
  void* sum = nullptr;           ///< s, written when there is an addend; may be x or addend
  const void* weight = nullptr;  ///< (width)
  void* out = nullptr;
  float* inv_rms = nullptr;  ///< (rows); null: not wanted (no backward will come)

  [[nodiscard]] double flops() const { return (addend ? 5.0 : 4.0) * static_cast<double>(rows * width); }
  [[nodiscard]] double bytes() const {
    return (addend ? 4.0 : 2.0) * static_cast<double>(rows * width) * static_cast<double>(size_of(dtype));
  }
};
void rmsnorm_forward(const Context& context, const RmsNormForward& arguments);

/// d_x = d_residual + the norm's gradient; d_weight (+)= sum over rows of d_out * s * inv_rms. The gradient of a
/// forward with addend is the same for both its summands: d_x. d_x may be d_out or d_residual. The sum over rows is
/// taken in a fixed order: the same bits on every run.
struct RmsNormBackward {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::fp32;           ///< of s, weight, d_out, d_residual, d_x
  DType gradient_dtype = DType::fp32;  ///< of d_weight: fp32, or dtype
  bool accumulate = false;             ///< add to d_weight instead of writing it
  const void* s = nullptr;             ///< what was normalized
  const void* weight = nullptr;
  const float* inv_rms = nullptr;
  const void* d_out = nullptr;
  const void* d_residual = nullptr;  ///< null: none
  void* d_x = nullptr;
  void* d_weight = nullptr;   ///< (width)
  void* workspace = nullptr;  ///< workspace_bytes() bytes

  [[nodiscard]] double flops() const { return 10.0 * static_cast<double>(rows * width); }
  [[nodiscard]] double bytes() const {
    return (d_residual ? 4.0 : 3.0) * static_cast<double>(rows * width) * static_cast<double>(size_of(dtype));
  }
};
[[nodiscard]] std::size_t workspace_bytes(Device device, const RmsNormBackward& arguments);
void rmsnorm_backward(const Context& context, const RmsNormBackward& arguments);

}  // namespace warpmeter::layers
