#pragma once

#include <cstdint>
#include <span>

#include "kernels/layers/step_state.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// How the exact weight is kept beside the one that products read.
enum class MasterKind : std::uint8_t {
  none,        ///< the weight itself is updated (fp32; bf16 for pure bf16 training)
  correction,  ///< bf16 weight + int16: master bits = (weight bits << 16) + correction, exactly an fp32
  copy,        ///< an fp32 master; the weight is its rounding
};

/// A master's bf16 half is (bits + 0x8000) >> 16: nearest, ties away from zero, so that what is left fits int16.
inline std::uint16_t split_weight(std::uint32_t master_bits) noexcept {
  return static_cast<std::uint16_t>((master_bits + 0x8000u) >> 16);
}
inline std::int16_t split_correction(std::uint32_t master_bits) noexcept {
  const std::uint32_t half = static_cast<std::uint32_t>(split_weight(master_bits)) << 16;
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(master_bits - half));
}
inline std::uint32_t join_master(std::uint16_t weight, std::int16_t correction) noexcept {
  return (static_cast<std::uint32_t>(weight) << 16) + static_cast<std::uint32_t>(static_cast<std::int32_t>(correction));
}

/// One parameter of many; all arrays dense with `count` elements.
struct AdamwTensor {
  void* weight = nullptr;
  void* master = nullptr;  ///< int16 corrections, fp32 copy, or null, by MasterKind
  const void* gradient = nullptr;
  void* m = nullptr;  ///< first moment
  void* v = nullptr;  ///< second moment
  std::int64_t count = 0;
};

/// The two definitions in use. With g the scaled gradient, t = state->step + 1, lr = state->learning_rate, c_i = 1 -
/// beta_i^t, m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2 in both: torch   w -= lr wd w;  then  w -=
/// (lr / c_1) m / (sqrt(v) / sqrt(c_2) + epsilon) course  w -= lr sqrt(c_2) / c_1 m / (sqrt(v) + epsilon);  then  w -=
/// lr wd w (epsilon meets an uncorrected sqrt(v), and the decay comes last). Source: Loshchilov and Hutter, "Decoupled
/// Weight Decay Regularization", 2019; torch.optim.AdamW.
enum class AdamwDefinition : std::uint8_t { torch, course };

struct AdamwHyperparameters {
  AdamwDefinition definition = AdamwDefinition::torch;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.01f;
};

/// One update of every tensor; arithmetic fp32 on the master. Nothing is touched when state->overflow is set. `tensors`
/// need not outlive the call. One launch takes as many tensors as it can (multi-tensor).
struct AdamwArguments {
  std::span<const AdamwTensor> tensors{};
  DType weight_dtype = DType::fp32;      ///< fp32, bf16 or fp16
  MasterKind master = MasterKind::none;  ///< correction: bf16 weights; copy: bf16 or fp16 weights
  DType gradient_dtype = DType::fp32;    ///< fp32, or weight_dtype
  DType moment_dtype = DType::fp32;      ///< of m and v: fp32, or bf16
  AdamwHyperparameters hyperparameters{};
  bool scale_gradients = true;  ///< multiply gradients by state->update_scale
  const StepState* state = nullptr;

  [[nodiscard]] double count() const {
    double sum = 0;
    for (const AdamwTensor& tensor : tensors) sum += static_cast<double>(tensor.count);
    return sum;
  }
  [[nodiscard]] double flops() const { return 16.0 * count(); }
  /// weight and master, m and v read and written, the gradient read.
  [[nodiscard]] double bytes() const {
    const double master_bytes = master == MasterKind::none ? 0 : master == MasterKind::copy ? 4 : 2;
    // A copy's weight is only written.
    const double weight = static_cast<double>(size_of(weight_dtype)) * (master == MasterKind::copy ? 1 : 2);
    return count() * (weight + 2 * master_bytes + 4.0 * static_cast<double>(size_of(moment_dtype)) +
                      static_cast<double>(size_of(gradient_dtype)));
  }
};
void adamw(const Context& context, const AdamwArguments& arguments);

/// Fills weight (and master) of one tensor from fp32 values on the same device, as MasterKind says.
struct SetWeights {
  std::int64_t count = 0;
  const float* values = nullptr;
  DType weight_dtype = DType::fp32;
  MasterKind master_kind = MasterKind::none;
  void* weight = nullptr;
  void* master = nullptr;

  [[nodiscard]] double flops() const { return 0; }
  [[nodiscard]] double bytes() const { return 4.0 * static_cast<double>(count); }
};
void set_weights(const Context& context, const SetWeights& arguments);

}  // namespace warpmeter::layers
