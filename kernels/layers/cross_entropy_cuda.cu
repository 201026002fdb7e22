// Cross-entropy and log-softmax by rows, a block a row. A row of up to kMostThreads * kHeld vectors is held in
// registers between its one read and what is written of it; a longer one is read twice, the second time from its end,
// which the caches still have. Rows may begin anywhere (vectors.cuh, lead_of()).
//
// Sums of exponentials are kept with an offset, the largest logit: sum of e^(x - offset). The difference is taken
// before it is scaled to powers of two: the largest logit's share is exactly 1, and a row of one logit has that for its
// log-sum-exp, loss 0 and gradient 0. A target outside of the vocabulary has
// no logit: its loss is NaN, and its gradient has no one taken off.
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kHeld = 4;
constexpr int kLoopThreads = 512;
constexpr int kThreads = 256;

/// Part of a row's denominator. An empty part has offset -inf and sum 0.
struct Denominator {
  float offset, sum;
};

__device__ __forceinline__ float rescale(float from, float to) {
  return from == kMinusInfinity ? 0.0f : exp2f((from - to) * kLog2e);
}
/// The offset that exponents are taken with: any finite one gives zeros for -inf alone, while a NaN stays one.
__device__ __forceinline__ float exponent_offset(float offset) {
  return offset == kMinusInfinity ? 0.0f : offset;
}
__device__ __forceinline__ Denominator warp_combine(Denominator d) {
  const float offset = warp_reduce(d.offset, Max{});
  return {offset, warp_reduce(d.sum * rescale(d.offset, offset))};
}
/// Over the block; once a kernel.
__device__ __forceinline__ Denominator block_combine(Denominator d) {
  __shared__ Denominator parts[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  d = warp_combine(d);
  if (lane == 0) parts[warp] = d;
  __syncthreads();  // `parts` is visible to all warps
  return warp_combine(lane < static_cast<int>(blockDim.x) / kWarp ? parts[lane] : Denominator{kMinusInfinity, 0.0f});
}

__device__ __forceinline__ float log_sum_exp(Denominator d) {
  return d.offset + logf(d.sum);
}

template <int kCount>
__device__ __forceinline__ float largest(const float (&x)[kCount], float so_far) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) so_far = fmaxf(so_far, x[i]);
  return so_far;
}
template <int kCount>
__device__ __forceinline__ float sum_of_powers(const float (&x)[kCount], float offset) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += exp2f((x[i] - offset) * kLog2e);
  return sum;
}

__device__ __forceinline__ float loss_scale_of(const StepState* state) {
  return state != nullptr ? state->loss_scale : 1.0f;
}
template <class T>
__device__ __forceinline__ float logit_at(const T* row, std::int64_t target, std::int64_t vocab) {
  return target >= 0 && target < vocab ? to_float(row[target]) : __int_as_float(0x7fffffff);
}

// What is done with a row once its denominator is known. finish() is one thread's, put() gets a vector of the row.

template <class T>
struct Loss {
  CrossEntropyForward a;
  using Type = T;
  static constexpr bool kWrites = false;
  __device__ const T* row(std::int64_t r) const { return static_cast<const T*>(a.logits) + r * a.stride; }
  __device__ std::int64_t vocab() const { return a.vocab; }
  struct RowState {};
  /// Before any element is written over.
  __device__ RowState begin(std::int64_t) const { return {}; }
  __device__ void finish(std::int64_t r, float lse, RowState) const {
    a.lse[r] = lse;
    a.losses[r] = lse - logit_at(row(r), a.targets[r], a.vocab);
  }
};

template <class T>
struct LossAndGradient {
  CrossEntropy a;
  using Type = T;
  static constexpr bool kWrites = true;
  __device__ T* row(std::int64_t r) const { return static_cast<T*>(a.logits) + r * a.stride; }
  __device__ std::int64_t vocab() const { return a.vocab; }
  struct RowState {
    std::int64_t target;
    float logit, factor;
  };
  __device__ RowState begin(std::int64_t r) const {
    const std::int64_t target = a.targets[r];
    return {target, logit_at(row(r), target, a.vocab), a.scale * loss_scale_of(a.state)};
  }
  __device__ void finish(std::int64_t r, float lse, RowState state) const { a.losses[r] = lse - state.logit; }
  template <int kCount>
  __device__ void put(std::int64_t r, std::int64_t at, float (&x)[kCount], Denominator total, RowState state) const {
    const float share = state.factor / total.sum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = exp2f((x[i] - total.offset) * kLog2e) * share - (at + i == state.target ? state.factor : 0.0f);
    }
    store_within(row(r), at, a.vocab, x);
  }
};

template <class T>
struct LogProbabilities {
  LogSoftmaxForward a;
  using Type = T;
  static constexpr bool kWrites = true;
  __device__ const T* row(std::int64_t r) const { return static_cast<const T*>(a.logits) + r * a.vocab; }
  __device__ std::int64_t vocab() const { return a.vocab; }
  struct RowState {};
  __device__ RowState begin(std::int64_t) const { return {}; }
  __device__ void finish(std::int64_t, float, RowState) const {}
  template <int kCount>
  __device__ void put(std::int64_t r, std::int64_t at, float (&x)[kCount], Denominator total, RowState) const {
    const float lse = log_sum_exp(total);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] -= lse;
    float* out = a.out + r * a.vocab;
    if (at >= 0 && at + kCount <= a.vocab && reinterpret_cast<std::uintptr_t>(out + at) % kVectorBytes == 0) {
      store(out + at, x);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (at + i >= 0 && at + i < a.vocab) out[at + i] = x[i];
      }
    }
  }
};

template <class Task>
__global__ void __launch_bounds__(kMostThreads) held_kernel(Task task) {
  using T = typename Task::Type;
  follow_previous();
  const std::int64_t r = blockIdx.x;
  const T* row = task.row(r);
  const int lead = lead_of(row), vocab = static_cast<int>(task.vocab());
  const auto state = task.begin(r);
  float x[kHeld][kLanes<T>];
#pragma unroll
  for (int held = 0; held < kHeld; ++held) {
    const int at = static_cast<int>(held * blockDim.x + threadIdx.x) * kLanes<T> - lead;
    load_within(row, at, vocab, kMinusInfinity, x[held]);
  }
  Denominator part{kMinusInfinity, 0.0f};
#pragma unroll
  for (int held = 0; held < kHeld; ++held) part.offset = largest(x[held], part.offset);
#pragma unroll
  for (int held = 0; held < kHeld; ++held) part.sum += sum_of_powers(x[held], exponent_offset(part.offset));
  // Also the barrier between the target's logit, read by all, and the first element written over.
  const Denominator total = block_combine(part);
  if (threadIdx.x == 0) task.finish(r, log_sum_exp(total), state);
  if constexpr (Task::kWrites) {
#pragma unroll
    for (int held = 0; held < kHeld; ++held) {
      const int at = static_cast<int>(held * blockDim.x + threadIdx.x) * kLanes<T> - lead;
      if (at < vocab) task.put(r, at, x[held], total, state);
    }
  }
}

template <class Task>
__global__ void __launch_bounds__(kLoopThreads) loop_kernel(Task task) {
  using T = typename Task::Type;
  follow_previous();
  const std::int64_t r = blockIdx.x;
  const T* row = task.row(r);
  const int lead = lead_of(row);
  const std::int64_t vocab = task.vocab(), vectors = divide_up(vocab + lead, kLanes<T>);
  const auto state = task.begin(r);
  Denominator part{kMinusInfinity, 0.0f};
#pragma unroll 4
  for (std::int64_t vector = threadIdx.x; vector < vectors; vector += kLoopThreads) {
    float x[kLanes<T>];
    load_within(row, vector * kLanes<T> - lead, vocab, kMinusInfinity, x);
    const float offset = fmaxf(part.offset, largest(x, kMinusInfinity));
    part.sum = part.sum * rescale(part.offset, offset) + sum_of_powers(x, exponent_offset(offset));
    part.offset = offset;
  }
  const Denominator total = block_combine(part);
  if (threadIdx.x == 0) task.finish(r, log_sum_exp(total), state);
  if constexpr (Task::kWrites) {
#pragma unroll 2
    for (std::int64_t vector = vectors - 1 - threadIdx.x; vector >= 0; vector -= kLoopThreads) {
      float x[kLanes<T>];
      load_within(row, vector * kLanes<T> - lead, vocab, kMinusInfinity, x);
      task.put(r, vector * kLanes<T> - lead, x, total, state);
    }
  }
}

template <class Task>
void launch_rows(const Context& context, std::int64_t rows, std::int64_t vocab, const Task& task) {
  using T = typename Task::Type;
  WM_CHECK(rows <= kMaxGrid, "too many rows for one grid");
  const std::int64_t vectors = divide_up(vocab + kLanes<T> - 1, kLanes<T>);  // with the longest lead
  if (vectors <= std::int64_t{kMostThreads} * kHeld) {
    launch(context, held_kernel<Task>, grid_of(rows), round_to_warps(divide_up(vectors, kHeld)), 0, task);
  } else {
    launch(context, loop_kernel<Task>, grid_of(rows), kLoopThreads, 0, task);
  }
  check_launch();
}

/// out[r][i] = (exp(in[r][i] - (lse ? lse[r] : 0)) - (i == targets[r])) * factor. A block has a piece of a row, which
/// kCount > 1 needs to begin on whole vectors on both sides but for `lead` elements.
template <int kCount, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const In* in, Out* out, std::int64_t vocab, std::int64_t stride, std::int64_t pieces,
                    const float* lse, const std::int32_t* targets, float scale, const StepState* state) {
  follow_previous();
  const std::int64_t r = blockIdx.x / pieces, piece = blockIdx.x - r * pieces;
  const In* row = in + r * stride;
  Out* to = out + r * stride;
  const int lead = kCount == 1 ? 0 : lead_of(row);
  const float offset = lse != nullptr ? lse[r] : 0.0f, factor = scale * loss_scale_of(state);
  const std::int64_t at = (piece * kThreads + threadIdx.x) * kCount - lead, target = targets[r];
  if (at >= vocab) return;
  const bool whole = at >= 0 && at + kCount <= vocab;
  float x[kCount];
  if (whole) {
    load(row + at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = at + i >= 0 && at + i < vocab ? to_float(row[at + i]) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = exp2f((x[i] - offset) * kLog2e) * factor - (at + i == target ? factor : 0.0f);
  }
  if (whole) {
    store(to + at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (at + i >= 0 && at + i < vocab) to[at + i] = from_float<Out>(x[i]);
    }
  }
}

template <int kCount, class In, class Out>
void launch_gradient(const Context& context, const In* in, Out* out, std::int64_t rows, std::int64_t vocab,
                     std::int64_t stride, const float* lse, const std::int32_t* targets, float scale,
                     const StepState* state) {
  const std::int64_t pieces = divide_up(vocab + kCount - 1, std::int64_t{kThreads} * kCount);
  WM_CHECK(rows * pieces <= kMaxGrid, "too many rows for one grid");
  launch(context, gradient_kernel<kCount, In, Out>, grid_of(rows * pieces), kThreads, 0, in, out, vocab, stride, pieces,
         lse, targets, scale, state);
  check_launch();
}

__global__ void __launch_bounds__(kThreads) nll_kernel(NllForward a) {
  follow_previous();
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r < a.rows) a.losses[r] = -logit_at(a.log_probabilities + r * a.vocab, a.targets[r], a.vocab);
}

/// One block: the order of the additions is the same on every run.
__global__ void __launch_bounds__(kMostThreads) mean_kernel(Mean a) {
  __shared__ double parts[kWarp];
  follow_previous();
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < a.count; i += kMostThreads) sum += static_cast<double>(a.values[i]);
  sum = block_reduce(sum, parts, 0.0);
  if (threadIdx.x == 0) *a.out = static_cast<float>(sum / static_cast<double>(a.count));
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) { launch_rows(context, a.rows, a.vocab, LossAndGradient<decltype(type)>{a}); });
}

void cross_entropy_forward(const Context& context, const CrossEntropyForward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) { launch_rows(context, a.rows, a.vocab, Loss<decltype(type)>{a}); });
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* in = static_cast<const T*>(a.logits);
    auto* out = static_cast<T*>(a.d_logits);
    const auto begin = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kVectorBytes; };
    if (begin(in) == begin(out)) {
      launch_gradient<kLanes<T>>(context, in, out, a.rows, a.vocab, a.stride, a.lse, a.targets, a.scale, a.state);
    } else {
      launch_gradient<1>(context, in, out, a.rows, a.vocab, a.stride, a.lse, a.targets, a.scale, a.state);
    }
  });
}

void log_softmax_forward(const Context& context, const LogSoftmaxForward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) { launch_rows(context, a.rows, a.vocab, LogProbabilities<decltype(type)>{a}); });
}

void nll_forward(const Context& context, const NllForward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  launch(context, nll_kernel, grid_of(divide_up(a.rows, kThreads)), kThreads, 0, a);
  check_launch();
}

void log_softmax_backward(const Context& context, const LogSoftmaxBackward& a) {
  if (a.rows == 0) return;
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    auto* out = static_cast<T*>(a.d_logits);
    // Four floats a thread, side by side on both sides.
    if (aligned(a.log_probabilities, out) && a.vocab % 4 == 0) {
      launch_gradient<4>(context, a.log_probabilities, out, a.rows, a.vocab, a.vocab, nullptr, a.targets, a.scale,
                         a.state);
    } else {
      launch_gradient<1>(context, a.log_probabilities, out, a.rows, a.vocab, a.vocab, nullptr, a.targets, a.scale,
                         a.state);
    }
  });
}

void mean(const Context& context, const Mean& a) {
  const DeviceGuard guard(context.device());
  launch(context, mean_kernel, 1, kMostThreads, 0, a);
  check_launch();
}

}  // namespace warpmeter::layers::cuda
