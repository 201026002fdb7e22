#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

namespace {

float value_at(const detail::RowKernels& kernels, const void* row, std::int64_t index, std::size_t bytes) {
  float value;
  kernels.to_float(detail::at(row, index, bytes), &value, 1);
  return value;
}

float gradient_factor(float scale, const StepState* state) {
  return state != nullptr ? scale * state->loss_scale : scale;
}

/// One row's gradient from its lse; may be in place.
void gradient_row(const detail::RowKernels& kernels, std::size_t bytes, const void* logits, std::int64_t vocab,
                  std::int32_t target, float lse, float factor, void* gradient) {
  float at_target;
  const float target_logit = value_at(kernels, logits, target, bytes);  // before it is written over
  detail::row_kernels(DType::fp32).scaled_softmax(&target_logit, lse, factor, &at_target, 1);
  kernels.scaled_softmax(logits, lse, factor, gradient, vocab);
  at_target -= factor;
  kernels.from_float(&at_target, detail::at(gradient, target, bytes), 1);
}

}  // namespace

void cross_entropy_forward(const Context&, const CrossEntropyForward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.vocab, [&](std::int64_t row) {
    const void* logits = detail::at(a.logits, row * a.stride, bytes);
    a.lse[row] = kernels.log_sum_exp(logits, a.vocab);
    a.losses[row] = a.lse[row] - value_at(kernels, logits, a.targets[row], bytes);
  });
}

void cross_entropy_backward(const Context&, const CrossEntropyBackward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  const float factor = gradient_factor(a.scale, a.state);
  detail::over_rows(a.rows, a.vocab, [&](std::int64_t row) {
    gradient_row(kernels, bytes, detail::at(a.logits, row * a.stride, bytes), a.vocab, a.targets[row], a.lse[row],
                 factor, detail::at(a.d_logits, row * a.stride, bytes));
  });
}

void cross_entropy(const Context&, const CrossEntropy& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  const float factor = gradient_factor(a.scale, a.state);
  detail::over_rows(a.rows, a.vocab, [&](std::int64_t row) {
    void* logits = detail::at(a.logits, row * a.stride, bytes);
    const float lse = kernels.log_sum_exp(logits, a.vocab);
    a.losses[row] = lse - value_at(kernels, logits, a.targets[row], bytes);
    gradient_row(kernels, bytes, logits, a.vocab, a.targets[row], lse, factor, logits);
  });
}

void log_softmax_forward(const Context&, const LogSoftmaxForward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.vocab, [&](std::int64_t row) {
    const void* logits = detail::at(a.logits, row * a.vocab, bytes);
    kernels.subtract(logits, kernels.log_sum_exp(logits, a.vocab), a.out + row * a.vocab, a.vocab);
  });
}

void nll_forward(const Context&, const NllForward& a) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    a.losses[row] = -a.log_probabilities[row * a.vocab + a.targets[row]];
  }
}

void log_softmax_backward(const Context&, const LogSoftmaxBackward& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  const float factor = gradient_factor(a.scale, a.state);
  detail::over_rows(a.rows, a.vocab, [&](std::int64_t row) {
    const float* log_probabilities = a.log_probabilities + row * a.vocab;
    void* gradient = detail::at(a.d_logits, row * a.vocab, bytes);
    kernels.scaled_exp(log_probabilities, factor, gradient, a.vocab);
    float at_target;
    detail::row_kernels(DType::fp32).scaled_exp(log_probabilities + a.targets[row], factor, &at_target, 1);
    at_target -= factor;
    kernels.from_float(&at_target, detail::at(gradient, a.targets[row], bytes), 1);
  });
}

void mean(const Context&, const Mean& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) sum += static_cast<double>(a.values[i]);
  *a.out = static_cast<float>(sum / static_cast<double>(a.count));
}

}  // namespace warpmeter::layers::cpu
