#include "kernels/data_parallel/detail/toy_elements.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::data_parallel::cuda {

namespace {

constexpr int kThreads = 128;

template <class Arguments>
__global__ void each(Arguments arguments) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < detail::elements(arguments)) detail::element(arguments, i);
}

__global__ void once(ToyLoss arguments) {
  detail::whole(arguments);
}

template <class Arguments>
void launch(const Context& context, const Arguments& arguments) {
  const DeviceGuard guard(context.device());
  const std::int64_t blocks = (detail::elements(arguments) + kThreads - 1) / kThreads;
  each<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(arguments);
  check_launch();
}

}  // namespace

void run(const Context& context, const ToyLinear& arguments) {
  launch(context, arguments);
}
void run(const Context& context, const ToyLinearWeightGradient& arguments) {
  launch(context, arguments);
}
void run(const Context& context, const ToyLinearInputGradient& arguments) {
  launch(context, arguments);
}
void run(const Context& context, const ToyLoss& arguments) {
  const DeviceGuard guard(context.device());
  once<<<1, 1, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(arguments);
  check_launch();
}

}  // namespace warpmeter::data_parallel::cuda
