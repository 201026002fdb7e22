#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/context.hpp"

namespace warpmeter::layers {

/// The training step's scalars, on the device, so that a captured step never asks the host.
struct StepState {
  float learning_rate = 1e-3f;
  float loss_scale = 1;         ///< the loss's gradient is multiplied by it; 1 unless fp16
  float gradient_norm = 0;      ///< of the gradients without loss scale, before clipping
  float update_scale = 1;       ///< what the optimizer multiplies gradients by: clipping / loss_scale
  std::int32_t overflow = 0;    ///< 1: the last gradients were not finite
  std::int32_t step = 0;        ///< updates done
  std::int32_t good_steps = 0;  ///< since the loss scale changed
  std::int32_t skipped = 0;     ///< steps left out because of an overflow
};

/// Ends a step. After an overflow: skipped + 1, good_steps = 0 and, with `scaling`, loss_scale * backoff. Else step + 1
/// and, with `scaling`, after `growth_interval` good steps in a row loss_scale * growth and good_steps = 0.
/// Source: Micikevicius et al., "Mixed Precision Training", 2018; constants as torch.amp.GradScaler's.
struct FinishStep {
  StepState* state = nullptr;
  bool scaling = false;
  float growth = 2.0f, backoff = 0.5f;
  std::int32_t growth_interval = 2000;

  [[nodiscard]] double flops() const { return 0; }
  [[nodiscard]] double bytes() const { return 2.0 * sizeof(StepState); }
};
void finish_step(const Context& context, const FinishStep& arguments);

}  // namespace warpmeter::layers
