#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/layers/step_state.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// One dense gradient of many.
struct GradientTensor {
  void* data = nullptr;
  std::int64_t count = 0;
};

/// Elements of one partial sum of squares.
inline constexpr std::int64_t kSquaresPiece = 16384;

/// The 2-norm over all gradients together, then what it decides, in `state`:
/// gradient_norm = norm / loss_scale; overflow = norm is not finite;
/// update_scale = min(1, max_norm / (gradient_norm + 1e-6)) / loss_scale (max_norm 0: no clipping).
/// Each gradient's squares are summed in pieces of kSquaresPiece, the last of what is left: in fp32 at most a few
/// hundred at a time, and in fp64 from there. Sums are in a fixed order. `gradients` need not outlive the call. Source:
/// torch.nn.utils.clip_grad_norm_ (the 1e-6).
struct GradientNorm {
  std::span<const GradientTensor> gradients{};
  DType dtype = DType::fp32;  ///< fp32, bf16 or fp16
  float max_norm = 0;
  StepState* state = nullptr;
  void* workspace = nullptr;  ///< workspace_bytes() bytes

  [[nodiscard]] std::int64_t pieces() const {
    std::int64_t sum = 0;
    for (const GradientTensor& g : gradients) sum += (g.count + kSquaresPiece - 1) / kSquaresPiece;
    return sum;
  }
  [[nodiscard]] double count() const {
    double sum = 0;
    for (const GradientTensor& g : gradients) sum += static_cast<double>(g.count);
    return sum;
  }
  [[nodiscard]] double flops() const { return 2.0 * count(); }
  [[nodiscard]] double bytes() const { return count() * static_cast<double>(size_of(dtype)); }
};
[[nodiscard]] std::size_t workspace_bytes(Device device, const GradientNorm& arguments);
void gradient_norm(const Context& context, const GradientNorm& arguments);

/// The eager way of clipping: every gradient times state->update_scale, in place. The caller's optimizer then does not
/// scale (AdamwArguments::scale_gradients false).
struct ScaleGradients {
  std::span<const GradientTensor> gradients{};
  DType dtype = DType::fp32;
  const StepState* state = nullptr;

  [[nodiscard]] double count() const { return GradientNorm{.gradients = gradients}.count(); }
  [[nodiscard]] double flops() const { return count(); }
  [[nodiscard]] double bytes() const { return 2.0 * count() * static_cast<double>(size_of(dtype)); }
};
void scale_gradients(const Context& context, const ScaleGradients& arguments);

}  // namespace warpmeter::layers
