#pragma once

#include <cstdint>

#include "kernels/layers/step_state.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// lse[r] = ln(sum exp(logits[r])), losses[r] = lse[r] - logits[r][targets[r]], in fp32. One pass; normalized logits
/// are not kept. Targets lie in [0, vocab).
struct CrossEntropyForward {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::fp32;     ///< of logits: fp32, bf16 or fp16
  const void* logits = nullptr;  ///< (rows, vocab), `stride` elements from row to row
  std::int64_t stride = 0;
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;     ///< (rows)
  float* losses = nullptr;  ///< (rows)

  [[nodiscard]] double flops() const { return 4.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows) * static_cast<double>(vocab) * static_cast<double>(size_of(dtype));
  }
};
void cross_entropy_forward(const Context& context, const CrossEntropyForward& arguments);

/// d_logits = (exp(logits - lse) - onehot(target)) * scale * (state ? state->loss_scale : 1). May be in place.
struct CrossEntropyBackward {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::fp32;  ///< of logits and d_logits
  const void* logits = nullptr;
  std::int64_t stride = 0;  ///< of logits and d_logits
  const std::int32_t* targets = nullptr;
  const float* lse = nullptr;
  float scale = 1;                   ///< 1 / rows for the mean
  const StepState* state = nullptr;  ///< on the device, or null
  void* d_logits = nullptr;

  [[nodiscard]] double flops() const { return 4.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
  [[nodiscard]] double bytes() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(vocab) * static_cast<double>(size_of(dtype));
  }
};
void cross_entropy_backward(const Context& context, const CrossEntropyBackward& arguments);

/// Both at once, in place: losses[r] = lse - logits[r][targets[r]] and logits = (softmax(logits) - onehot(target)) *
/// scale
/// * (state ? state->loss_scale : 1). A row that a CUDA block can hold is read once. Rows may be a piece of a batch, so
/// that a head in pieces never has all logits.
struct CrossEntropy {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::fp32;
  void* logits = nullptr;  ///< in: logits, out: their gradient; (rows, vocab), `stride` elements from row to row
  std::int64_t stride = 0;
  const std::int32_t* targets = nullptr;
  float* losses = nullptr;           ///< (rows)
  float scale = 1;                   ///< 1 / rows of the whole batch for the mean
  const StepState* state = nullptr;  ///< on the device, or null

  [[nodiscard]] double flops() const { return 8.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
  [[nodiscard]] double bytes() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(vocab) * static_cast<double>(size_of(dtype));
  }
};
void cross_entropy(const Context& context, const CrossEntropy& arguments);

/// The eager way, log-probabilities kept in fp32: out[r] = logits[r] - ln(sum exp(logits[r])).
struct LogSoftmaxForward {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::fp32;  ///< of logits, dense
  const void* logits = nullptr;
  float* out = nullptr;  ///< (rows, vocab)

  [[nodiscard]] double flops() const { return 5.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows) * static_cast<double>(vocab) * (4.0 + static_cast<double>(size_of(dtype)));
  }
};
void log_softmax_forward(const Context& context, const LogSoftmaxForward& arguments);

/// losses[r] = -log_probabilities[r][targets[r]].
struct NllForward {
  std::int64_t rows = 0, vocab = 0;
  const float* log_probabilities = nullptr;
  const std::int32_t* targets = nullptr;
  float* losses = nullptr;

  [[nodiscard]] double flops() const { return static_cast<double>(rows); }
  [[nodiscard]] double bytes() const { return 12.0 * static_cast<double>(rows); }
};
void nll_forward(const Context& context, const NllForward& arguments);

/// d_logits = (exp(log_probabilities) - onehot(target)) * scale * (state ? state->loss_scale : 1), dense.
struct LogSoftmaxBackward {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::fp32;  ///< of d_logits
  const float* log_probabilities = nullptr;
  const std::int32_t* targets = nullptr;
  float scale = 1;
  const StepState* state = nullptr;
  void* d_logits = nullptr;

  [[nodiscard]] double flops() const { return 3.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows) * static_cast<double>(vocab) * (4.0 + static_cast<double>(size_of(dtype)));
  }
};
void log_softmax_backward(const Context& context, const LogSoftmaxBackward& arguments);

/// out[0] = mean of `count` fp32 values, in a fixed order: the same bits on every run.
struct Mean {
  std::int64_t count = 0;
  const float* values = nullptr;
  float* out = nullptr;

  [[nodiscard]] double flops() const { return static_cast<double>(count); }
  [[nodiscard]] double bytes() const { return 4.0 * static_cast<double>(count); }
};
void mean(const Context& context, const Mean& arguments);

}  // namespace warpmeter::layers
