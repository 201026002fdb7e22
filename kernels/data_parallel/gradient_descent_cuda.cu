#include <algorithm>

#include "kernels/data_parallel/gradient_descent.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::data_parallel::cuda {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;

__global__ void descend(GradientDescent a) {
  if (a.state->overflow != 0) return;
  const float rate = a.state->learning_rate, scale = a.scale_gradients ? a.state->update_scale : 1.0f;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.count; i += stride) {
    a.weight[i] -= rate * (scale * a.gradient[i]);
  }
}

}  // namespace

void gradient_descent(const Context& context, const GradientDescent& a) {
  if (a.count == 0) return;
  const DeviceGuard guard(context.device());
  const std::int64_t blocks = std::min((a.count + kThreads - 1) / kThreads, kMostBlocks);
  descend<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(a);
  check_launch();
}

}  // namespace warpmeter::data_parallel::cuda
