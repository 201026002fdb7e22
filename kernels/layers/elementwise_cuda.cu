// Elementwise operations over dense arrays: a thread handles kStep vectors, a block's width apart, all loaded before
// the first is stored, so that enough bytes are under way. Arrays that do not begin on 16 bytes, and the last elements
// of any, go one by one.
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kStep = 2;

template <ElementwiseOperation kOperation>
__device__ __forceinline__ float apply(float a, float b) {
  switch (kOperation) {
    case ElementwiseOperation::add:
      return a + b;
    case ElementwiseOperation::multiply:
      return a * b;
    case ElementwiseOperation::silu:
      return a * sigmoid(a);
    case ElementwiseOperation::silu_backward:
      return b * silu_slope(a, sigmoid(a));
  }
  return 0;
}

template <ElementwiseOperation kOperation, int kCount, class T>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(const T* a, const T* b, T* out, std::int64_t count) {
  follow_previous();
  constexpr bool kReadsB = kOperation != ElementwiseOperation::silu;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kStep * kCount);
  float x[kStep][kCount], y[kStep][kCount];
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = block + (step * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    if (at + kCount > count) continue;
    load(a + at, x[step]);
    if constexpr (kReadsB) load(b + at, y[step]);
  }
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = block + (step * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    if (at + kCount <= count) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[step][i] = apply<kOperation>(x[step][i], kReadsB ? y[step][i] : 0);
      store(out + at, x[step]);
    } else {
      for (std::int64_t i = at; i < count; ++i) {
        out[i] = from_float<T>(apply<kOperation>(to_float(a[i]), kReadsB ? to_float(b[i]) : 0));
      }
    }
  }
}

template <int kCount, class In, class Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(const In* in, Out* out, std::int64_t count) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kStep * kCount);
  float x[kStep][kCount];
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = block + (step * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    if (at + kCount <= count) load(in + at, x[step]);
  }
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = block + (step * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    if (at + kCount <= count) {
      store(out + at, x[step]);
    } else {
      for (std::int64_t i = at; i < count; ++i) out[i] = from_float<Out>(to_float(in[i]));
    }
  }
}

template <ElementwiseOperation kOperation, class T>
void enqueue(const Context& context, const Elementwise& e) {
  const auto run = [&](auto lanes) {
    constexpr int kCount = decltype(lanes)::value;
    const unsigned grid = grid_of(divide_up(e.count, kThreads * kStep * kCount));
    launch(context, elementwise_kernel<kOperation, kCount, T>, grid, kThreads, 0, static_cast<const T*>(e.a),
           static_cast<const T*>(e.b), static_cast<T*>(e.out), e.count);
  };
  if (aligned(e.a, e.b, e.out)) {
    run(std::integral_constant<int, kLanes<T>>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void elementwise(const Context& context, const Elementwise& arguments) {
  if (arguments.count == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(arguments.dtype, [&](auto type) {
    using T = decltype(type);
    using enum ElementwiseOperation;
    switch (arguments.operation) {
      case add:
        return enqueue<add, T>(context, arguments);
      case multiply:
        return enqueue<multiply, T>(context, arguments);
      case silu:
        return enqueue<silu, T>(context, arguments);
      case silu_backward:
        return enqueue<silu_backward, T>(context, arguments);
    }
  });
  check_launch();
}

void convert(const Context& context, const Convert& arguments) {
  if (arguments.count == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(arguments.in_dtype, [&](auto in_type) {
    for_storage(arguments.out_dtype, [&](auto out_type) {
      using In = decltype(in_type);
      using Out = decltype(out_type);
      const auto run = [&](auto lanes) {
        constexpr int kCount = decltype(lanes)::value;
        const unsigned grid = grid_of(divide_up(arguments.count, kThreads * kStep * kCount));
        convert_kernel<kCount><<<grid, kThreads, 0, stream_of(context)>>>(
            static_cast<const In*>(arguments.in), static_cast<Out*>(arguments.out), arguments.count);
      };
      if (aligned(arguments.in, arguments.out)) {
        // Neighbouring threads stay side by side in memory on both sides: 4 elements where one side is fp32.
        run(std::integral_constant<int, std::min(kLanes<In>, kLanes<Out>)>{});
      } else {
        run(std::integral_constant<int, 1>{});
      }
    });
  });
  check_launch();
}

}  // namespace warpmeter::layers::cuda
