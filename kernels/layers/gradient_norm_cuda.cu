// The norm of all gradients in two stages: a block sums the squares of one chunk of one tensor, in fp32 by threads and
// fp64 from there; one block adds the chunks' sums in their order and decides about clipping and overflow.
//
// Workspace: a double for each chunk.
#include "kernels/layers/cuda/tensor_list.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kLastThreads = 1024;

struct Gradient {
  void* data;
  std::int64_t count;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    square_kernel(const __grid_constant__ TensorList<Gradient> list, double* sums) {
  __shared__ double parts[kWarp];
  const int index = list.find(blockIdx.x);
  const Gradient gradient = list.entries[index];
  const std::int64_t begin = (blockIdx.x - list.first[index]) * kChunk;
  const T* data = static_cast<const T*>(gradient.data) + begin;
  const int count = static_cast<int>(min(kChunk, gradient.count - begin)), lead = lead_of(data);
  float sum[2] = {0, 0};  // two chains of additions
#pragma unroll 8
  for (int at = static_cast<int>(threadIdx.x) * kLanes<T> - lead; at < count; at += kThreads * kLanes<T>) {
    float x[kLanes<T>];
    load_within(data, at, count, 0.0f, x);
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) sum[i % 2] += x[i] * x[i];
  }
  const double total = block_reduce(static_cast<double>(sum[0]) + static_cast<double>(sum[1]), parts, 0.0);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kLastThreads)
    decide_kernel(const double* sums, std::int64_t count, float max_norm, StepState* state) {
  __shared__ double parts[kWarp];
  double total = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kLastThreads) total += sums[i];
  total = block_reduce(total, parts, 0.0);
  if (threadIdx.x != 0) return;
  const float loss_scale = state->loss_scale, norm = static_cast<float>(sqrt(total)) / loss_scale;
  state->overflow = isfinite(total) ? 0 : 1;
  state->gradient_norm = norm;
  state->update_scale = (max_norm > 0 ? fminf(1.0f, max_norm / (norm + 1e-6f)) : 1.0f) / loss_scale;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ TensorList<Gradient> list, const StepState* state) {
  const float factor = state->update_scale;
  const int index = list.find(blockIdx.x);
  const Gradient gradient = list.entries[index];
  const std::int64_t begin = (blockIdx.x - list.first[index]) * kChunk;
  T* data = static_cast<T*>(gradient.data) + begin;
  const int count = static_cast<int>(min(kChunk, gradient.count - begin)), lead = lead_of(data);
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) * kLanes<T> - lead; at < count; at += kThreads * kLanes<T>) {
    float x[kLanes<T>];
    load_within(data, at, count, 0.0f, x);
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) x[i] *= factor;
    store_within(data, at, count, x);
  }
}

Gradient entry(const GradientTensor& tensor) {
  return {tensor.data, tensor.count};
}

}  // namespace

std::size_t workspace_bytes(const GradientNorm& a) {
  return static_cast<std::size_t>(a.pieces()) * sizeof(double);
}

void gradient_norm(const Context& context, const GradientNorm& a) {
  static_assert(kChunk == kSquaresPiece, "a block leaves one sum");
  const DeviceGuard guard(context.device());
  auto* const sums = static_cast<double*>(a.workspace);
  for_storage(a.dtype, [&](auto type) {
    for_lists<Gradient>(a.gradients, entry, [&](const TensorList<Gradient>& list, std::int64_t before) {
      square_kernel<decltype(type)><<<grid_of(list.chunks()), kThreads, 0, stream_of(context)>>>(list, sums + before);
      check_launch();
    });
  });
  decide_kernel<<<1, kLastThreads, 0, stream_of(context)>>>(sums, a.pieces(), a.max_norm, a.state);
  check_launch();
}

void scale_gradients(const Context& context, const ScaleGradients& a) {
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    for_lists<Gradient>(a.gradients, entry, [&](const TensorList<Gradient>& list, std::int64_t) {
      scale_kernel<decltype(type)><<<grid_of(list.chunks()), kThreads, 0, stream_of(context)>>>(list, a.state);
      check_launch();
    });
  });
}

}  // namespace warpmeter::layers::cuda
