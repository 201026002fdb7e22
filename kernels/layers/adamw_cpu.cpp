#include <cmath>
#include <cstring>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

namespace {

constexpr std::int64_t kPiece = 2048;  // four fp32 copies of it stay in the first-level cache

detail::AdamwFactors factors(const AdamwArguments& a) {
  const AdamwHyperparameters& h = a.hyperparameters;
  const double t = a.state->step + 1, lr = static_cast<double>(a.state->learning_rate);
  const double correction1 = 1 - std::pow(static_cast<double>(h.beta1), t);
  const double correction2 = 1 - std::pow(static_cast<double>(h.beta2), t);
  const double decay = lr * static_cast<double>(h.weight_decay);
  detail::AdamwFactors f{};
  f.beta1 = h.beta1;
  f.beta2 = h.beta2;
  f.gradient_scale = a.scale_gradients ? a.state->update_scale : 1.0f;
  f.epsilon = h.epsilon;
  if (h.definition == AdamwDefinition::torch) {
    f.decay_before = static_cast<float>(1 - decay);
    f.step_size = static_cast<float>(lr / correction1);
    f.root_scale = static_cast<float>(1 / std::sqrt(correction2));
    f.decay_after = 0;
  } else {
    f.decay_before = 1;
    f.step_size = static_cast<float>(lr * std::sqrt(correction2) / correction1);
    f.root_scale = 1;
    f.decay_after = static_cast<float>(decay);
  }
  return f;
}

/// fp32 values of a piece: the array itself where it is fp32, else a widened copy.
float* widened(DType dtype, void* data, std::int64_t begin, std::int64_t count, float* copy) {
  if (dtype == DType::fp32) return static_cast<float*>(data) + begin;
  detail::row_kernels(dtype).to_float(detail::at(data, begin, size_of(dtype)), copy, count);
  return copy;
}
void narrowed(DType dtype, const float* values, void* data, std::int64_t begin, std::int64_t count) {
  if (dtype == DType::fp32) return;
  detail::row_kernels(dtype).from_float(values, detail::at(data, begin, size_of(dtype)), count);
}

}  // namespace

void adamw(const Context&, const AdamwArguments& a) {
  if (a.state->overflow != 0) return;
  const detail::AdamwFactors f = factors(a);
  const detail::MasterKernels& kernels = detail::master_kernels();
  for (const AdamwTensor& tensor : a.tensors) {
    detail::over_pieces(tensor.count, kPiece, [&](std::int64_t begin, std::int64_t count) {
      float weights[kPiece], gradients[kPiece], first[kPiece], second[kPiece];
      auto* correction = static_cast<std::int16_t*>(tensor.master) + begin;
      void* weight = detail::at(tensor.weight, begin, size_of(a.weight_dtype));
      float* w = weights;
      switch (a.master) {
        case MasterKind::none:
          w = widened(a.weight_dtype, tensor.weight, begin, count, weights);
          break;
        case MasterKind::correction:
          kernels.join(weight, correction, weights, count);
          break;
        case MasterKind::copy:
          w = static_cast<float*>(tensor.master) + begin;
          break;
      }
      const float* g = widened(a.gradient_dtype, const_cast<void*>(tensor.gradient), begin, count, gradients);
      float* m = widened(a.moment_dtype, tensor.m, begin, count, first);
      float* v = widened(a.moment_dtype, tensor.v, begin, count, second);
      kernels.adamw(w, g, m, v, count, f);
      narrowed(a.moment_dtype, m, tensor.m, begin, count);
      narrowed(a.moment_dtype, v, tensor.v, begin, count);
      if (a.master == MasterKind::correction) {
        kernels.split(w, weight, correction, count);
      } else {
        narrowed(a.weight_dtype, w, tensor.weight, begin, count);
      }
    });
  }
}

void set_weights(const Context&, const SetWeights& a) {
  detail::over_pieces(a.count, kPiece, [&](std::int64_t begin, std::int64_t count) {
    const float* values = a.values + begin;
    void* weight = detail::at(a.weight, begin, size_of(a.weight_dtype));
    if (a.master_kind == MasterKind::correction) {
      detail::master_kernels().split(values, weight, static_cast<std::int16_t*>(a.master) + begin, count);
      return;
    }
    detail::row_kernels(a.weight_dtype).from_float(values, weight, count);
    if (a.master_kind == MasterKind::copy) {
      std::memcpy(static_cast<float*>(a.master) + begin, values, static_cast<std::size_t>(count) * sizeof(float));
    }
  });
}

}  // namespace warpmeter::layers::cpu
