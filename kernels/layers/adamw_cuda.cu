// Picks the kernel for the types in use (cuda/adamw.cuh) and hands it the tensors, as many a launch as its parameters
// hold; sets weights.
#include "kernels/layers/cuda/adamw.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kThreads = 256;

template <class Master, int kCount>
__global__ void __launch_bounds__(kThreads) set_kernel(const float* values, AdamwTensor tensor) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (at + kCount <= tensor.count) {
    float x[kCount];
    load(values + at, x);
    Master::put(tensor, at, x);
  } else {
    for (std::int64_t i = at; i < tensor.count; ++i) {
      float x[1] = {values[i]};
      Master::put(tensor, i, x);
    }
  }
}

template <class Master>
void set(const Context& context, const SetWeights& a) {
  const AdamwTensor tensor{.weight = a.weight, .master = a.master, .count = a.count};
  if (aligned(a.values, a.weight, a.master)) {
    set_kernel<Master, 4>
        <<<grid_of(divide_up(a.count, kThreads * 4)), kThreads, 0, stream_of(context)>>>(a.values, tensor);
  } else {
    set_kernel<Master, 1><<<grid_of(divide_up(a.count, kThreads)), kThreads, 0, stream_of(context)>>>(a.values, tensor);
  }
}

AdamwLaunch launcher(const AdamwArguments& a) {
  switch (a.master) {
    case MasterKind::none:
      return adamw_plain(a.weight_dtype, a.gradient_dtype, a.moment_dtype);
    case MasterKind::correction:
      return adamw_correction(a.gradient_dtype, a.moment_dtype);
    case MasterKind::copy:
      return adamw_copy(a.weight_dtype, a.gradient_dtype, a.moment_dtype);
  }
  return nullptr;
}

}  // namespace

void adamw(const Context& context, const AdamwArguments& a) {
  const DeviceGuard guard(context.device());
  const AdamwLaunch enqueue = launcher(a);
  const AdamwHyperparameters& h = a.hyperparameters;
  const AdamwStep step{h.definition, h.beta1, h.beta2, h.epsilon, h.weight_decay, a.scale_gradients, a.state};
  const auto entry = [](const AdamwTensor& t) {
    return AdamwEntry{t, aligned(t.weight, t.master, t.gradient, t.m, t.v)};
  };
  for_lists<AdamwEntry>(a.tensors, entry, [&](const TensorList<AdamwEntry>& list, std::int64_t) {
    enqueue(context, list, step);
    check_launch();
  });
}

void set_weights(const Context& context, const SetWeights& a) {
  if (a.count == 0) return;
  const DeviceGuard guard(context.device());
  if (a.master_kind == MasterKind::correction) {
    set<CorrectionMaster>(context, a);
  } else {
    for_storage(a.weight_dtype, [&](auto type) {
      using T = decltype(type);
      if (a.master_kind == MasterKind::copy) {
        set<CopyMaster<T>>(context, a);
      } else {
        set<PlainMaster<T>>(context, a);
      }
    });
  }
  check_launch();
}

}  // namespace warpmeter::layers::cuda
