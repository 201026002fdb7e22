// A block has a piece of one row: a thread handles up to kStep vectors of it, a block's width apart, all loaded before
// the first is stored. Blocks run along the rows, then down.
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kMostThreads = 256;

struct Layout {
  std::int64_t pieces;  ///< of a row
  std::int64_t blocks;
  unsigned threads;

  Layout(std::int64_t rows, std::int64_t width, int count, int step) {
    const std::int64_t vectors = divide_up(width, count);
    pieces = divide_up(vectors, std::int64_t{kMostThreads} * step);
    blocks = rows * pieces;
    threads = round_to_warps(divide_up(vectors, pieces * step));
    WM_CHECK(blocks <= kMaxGrid, "too many rows for one grid");
  }
};

/// Where a block works: its row, and its threads' first element in it.
struct Place {
  std::int64_t row, first;
  __device__ Place(std::int64_t pieces, int count, int step) {
    const std::int64_t block = blockIdx.x;
    row = pieces == 1 ? block : block / pieces;
    const std::int64_t piece = block - row * pieces;
    first = (piece * step * blockDim.x + threadIdx.x) * count;
  }
};

template <int kCount, int kStep, class T>
__global__ void __launch_bounds__(kMostThreads) forward_kernel(SwigluForward a, std::int64_t pieces) {
  follow_previous();
  const Place place(pieces, kCount, kStep);
  const T* gate = static_cast<const T*>(a.gate) + place.row * a.in_stride;
  const T* up = static_cast<const T*>(a.up) + place.row * a.in_stride;
  T* out = static_cast<T*>(a.out) + place.row * a.width;
  float g[kStep][kCount], u[kStep][kCount];
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = place.first + step * static_cast<std::int64_t>(blockDim.x) * kCount;
    if (at >= a.width) continue;
    load(gate + at, g[step]);
    load(up + at, u[step]);
  }
#pragma unroll
  for (int step = 0; step < kStep; ++step) {
    const std::int64_t at = place.first + step * static_cast<std::int64_t>(blockDim.x) * kCount;
    if (at >= a.width) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) g[step][i] = g[step][i] * sigmoid(g[step][i]) * u[step][i];
    store(out + at, g[step]);
  }
}

template <int kCount, class T>
__global__ void __launch_bounds__(kMostThreads) backward_kernel(SwigluBackward a, std::int64_t pieces) {
  follow_previous();
  const Place place(pieces, kCount, 1);
  if (place.first >= a.width) return;
  const std::int64_t in = place.row * a.in_stride + place.first, dense = place.row * a.width + place.first;
  const std::int64_t d_at = place.row * a.d_stride + place.first;
  float g[kCount], u[kCount], d[kCount];
  load(static_cast<const T*>(a.gate) + in, g);
  load(static_cast<const T*>(a.up) + in, u);
  load(static_cast<const T*>(a.d_out) + dense, d);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = sigmoid(g[i]), silu = g[i] * s;
    const float d_gate = d[i] * u[i] * silu_slope(g[i], s);
    u[i] = silu * u[i];      // the output again
    d[i] = d[i] * g[i] * s;  // d_up
    g[i] = d_gate;
  }
  store(static_cast<T*>(a.d_gate) + d_at, g);
  store(static_cast<T*>(a.d_up) + d_at, d);
  if (a.out != nullptr) store(static_cast<T*>(a.out) + dense, u);
}

}  // namespace

void swiglu_forward(const Context& context, const SwigluForward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto lanes) {
      constexpr int kCount = decltype(lanes)::value, kStep = 2;
      const Layout layout(a.rows, a.width, kCount, kStep);
      launch(context, forward_kernel<kCount, kStep, T>, grid_of(layout.blocks), layout.threads, 0, a, layout.pieces);
    };
    constexpr int kVector = kLanes<T>;
    if (aligned(a.gate, a.up, a.out) && a.width % kVector == 0 && a.in_stride % kVector == 0) {
      run(std::integral_constant<int, kVector>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
  check_launch();
}

void swiglu_backward(const Context& context, const SwigluBackward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto lanes) {
      constexpr int kCount = decltype(lanes)::value;
      const Layout layout(a.rows, a.width, kCount, 1);
      launch(context, backward_kernel<kCount, T>, grid_of(layout.blocks), layout.threads, 0, a, layout.pieces);
    };
    constexpr int kVector = kLanes<T>;
    if (aligned(a.gate, a.up, a.d_out, a.d_gate, a.d_up, a.out) && a.width % kVector == 0 &&
        a.in_stride % kVector == 0 && a.d_stride % kVector == 0) {
      run(std::integral_constant<int, kVector>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
  check_launch();
}

}  // namespace warpmeter::layers::cuda
