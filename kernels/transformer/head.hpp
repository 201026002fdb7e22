#pragma once

#include <cstdint>

#include "kernels/layers/step_state.hpp"
#include "kernels/transformer/block.hpp"

namespace warpmeter::transformer {

/// The end of the model: final norm, head and cross-entropy. With R = batch * context rows: residual (R, d_model),
/// logits (R, vocab), targets (R), all of the activations' type but for the targets. Structures differ in the loss.
/// What allocates throws OutOfMemory; what it is made with is borrowed.
class Head {
 public:
  /// `micro_batches`: backwards whose gradients add up to a step's mean.
  Head(Executor& executor, const BlockContext& context, const ParameterLayout& layout, Structure structure,
       std::int64_t micro_batches);

  /// Uses `residual` up.
  [[nodiscard]] NormedResidual norm(ResidualStream& residual) const;
  [[nodiscard]] Array logits(const Array& normed) const;

  /// The gradient of the logits, of the mean loss times the scalars' loss scale; writes the mean loss. fused: one pass
  /// for the loss, the gradient written over the logits. naive: log-probabilities kept in fp32, as eager frameworks do.
  [[nodiscard]] Array loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                           float* mean_loss) const;

  /// From there to the gradient of the residual that left the last block. Uses up both. Memory for the weights'
  /// gradients is there.
  [[nodiscard]] Array backward(Array d_logits, NormedResidual last) const;

 private:
  [[nodiscard]] Array fused_loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                                 float* mean_loss) const;
  [[nodiscard]] Array naive_loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                                 float* mean_loss) const;
  [[nodiscard]] Array losses(std::string_view operation) const;
  void take_mean(const Array& losses, float* mean_loss) const;
  [[nodiscard]] std::int64_t rows() const { return context_.rows(); }
  [[nodiscard]] float loss_share() const { return 1.0f / static_cast<float>(rows() * micro_batches_); }

  Executor& executor_;
  const BlockContext& context_;
  const ParameterLayout& layout_;
  Structure structure_;
  std::int64_t micro_batches_;
};

}  // namespace warpmeter::transformer
