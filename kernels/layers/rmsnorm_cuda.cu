// RMSNorm. Rows of whole 16-byte vectors are held in registers between their one read and their one write: each thread
// of a row's team has kHeld vectors of it. Other rows (odd or very wide) are read twice, element by element.
//
// Backward: a fixed number of blocks walks over the rows, several rows at a time where they are short (a team each),
// and keeps its share of d_weight in registers; the shares go to the workspace, and a second kernel adds them, each
// column's in the same order on every run.
//
// Workspace: shares(rows) x width floats. Shared memory: a row of floats where several teams' shares meet.
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kMostThreads = 512;
constexpr int kLoopThreads = 256;
constexpr int kWideHeld = 4;
constexpr int kHeldWidthOne = kMostThreads;               // vectors of a row that a team holds one a thread
constexpr int kHeldWidthMost = kMostThreads * kWideHeld;  // and kWideHeld a thread
constexpr std::int64_t kShares = 264;                     // two blocks for each multiprocessor of an H200
constexpr int kColumns = 32, kShareRows = 32;             // block of the second stage

struct Shape {
  bool held;  ///< rows in registers
  int per_thread;
  unsigned team;  ///< threads of a row
  int teams;      ///< of a block, backward only

  Shape(std::int64_t width, int lanes, bool is_aligned) : held(false), per_thread(1), team(kLoopThreads), teams(1) {
    const std::int64_t vectors = width / lanes;
    if (!is_aligned || width % lanes != 0 || vectors > kHeldWidthMost) return;
    held = true;
    per_thread = vectors <= kHeldWidthOne ? 1 : kWideHeld;
    team = round_to_warps(divide_up(vectors, per_thread));
    if (per_thread == 1) teams = static_cast<int>(kMostThreads / team);
  }
};

// --- Forward -------------------------------------------------------------------------------------------------------

template <int kHeld, class T>
__global__ void __launch_bounds__(kMostThreads) forward_kernel(RmsNormForward a) {
  constexpr int kCount = kLanes<T>;
  __shared__ float parts[kWarp];
  follow_previous();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * a.width;
  const T *x = static_cast<const T*>(a.x) + row, *weight = static_cast<const T*>(a.weight);
  float s[kHeld][kCount], w[kHeld][kCount], addend[kHeld][kCount];
#pragma unroll
  for (int held = 0; held < kHeld; ++held) {
    const std::int64_t at = static_cast<std::int64_t>(held * blockDim.x + threadIdx.x) * kCount;
    if (at >= a.width) continue;
    load(x + at, s[held]);
    if (a.addend != nullptr) load(static_cast<const T*>(a.addend) + row + at, addend[held]);
    load(weight + at, w[held]);
  }
  float squares = 0;
#pragma unroll
  for (int held = 0; held < kHeld; ++held) {
    const std::int64_t at = static_cast<std::int64_t>(held * blockDim.x + threadIdx.x) * kCount;
    if (at >= a.width) continue;
    if (a.addend != nullptr) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) s[held][i] += addend[held][i];
      round_to<T>(s[held]);  // what is normalized is what is stored
      store(static_cast<T*>(a.sum) + row + at, s[held]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) squares += s[held][i] * s[held][i];
  }
  squares = block_reduce(squares, parts, 0.0f);
  const float inv_rms = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
  if (a.inv_rms != nullptr && threadIdx.x == 0) a.inv_rms[blockIdx.x] = inv_rms;
#pragma unroll
  for (int held = 0; held < kHeld; ++held) {
    const std::int64_t at = static_cast<std::int64_t>(held * blockDim.x + threadIdx.x) * kCount;
    if (at >= a.width) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[held][i] *= inv_rms * w[held][i];
    store(static_cast<T*>(a.out) + row + at, s[held]);
  }
}

template <class T>
__global__ void __launch_bounds__(kLoopThreads) forward_loop_kernel(RmsNormForward a) {
  __shared__ float parts[kWarp];
  follow_previous();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * a.width;
  const T *x = static_cast<const T*>(a.x) + row, *weight = static_cast<const T*>(a.weight);
  const T *addend = static_cast<const T*>(a.addend) + row, *s = x;
  T* sum = static_cast<T*>(a.sum) + row;
  if (a.addend != nullptr) {
    // A thread reads again only what it has written itself.
    for (std::int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
      sum[i] = from_float<T>(to_float(x[i]) + to_float(addend[i]));
    }
    s = sum;
  }
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < a.width; i += blockDim.x) squares += to_float(s[i]) * to_float(s[i]);
  squares = block_reduce(squares, parts, 0.0f);
  const float inv_rms = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
  if (a.inv_rms != nullptr && threadIdx.x == 0) a.inv_rms[blockIdx.x] = inv_rms;
  for (std::int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    static_cast<T*>(a.out)[row + i] = from_float<T>(to_float(s[i]) * (inv_rms * to_float(weight[i])));
  }
}

// --- Backward ------------------------------------------------------------------------------------------------------

/// The sum of x over the thread's team of `team` threads (whole warps, teams side by side in the block). `parts`: one
/// float a warp of the block, free since a barrier before this call.
__device__ __forceinline__ float team_reduce(float x, float* parts, int team) {
  x = warp_reduce(x);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();  // `parts` is visible to all warps
  const int first = static_cast<int>(threadIdx.x) / team * (team / kWarp), lane = static_cast<int>(threadIdx.x) % kWarp;
  return warp_reduce(lane < team / kWarp ? parts[first + lane] : 0.0f);
}

/// A vector of a row as it lies in memory: half the registers of its values where those have 16 bits.
template <class T>
__device__ __forceinline__ void values_of(const uint4& raw, float (&x)[kLanes<T>]) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  unpack<T>(raw.x, x);
  unpack<T>(raw.y, x + kPerWord);
  unpack<T>(raw.z, x + 2 * kPerWord);
  unpack<T>(raw.w, x + 3 * kPerWord);
}
template <class T>
__device__ __forceinline__ uint4 raw_at(const void* row, std::int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const T*>(row) + at);
}

/// Block b has the rows [b * rows_a_block, (b + 1) * rows_a_block).
template <int kHeld, class T>
__global__ void __launch_bounds__(kMostThreads)
    backward_kernel(RmsNormBackward a, int team, std::int64_t rows_a_block) {
  constexpr int kCount = kLanes<T>;
  extern __shared__ float meeting[];  // width floats, where there are several teams
  __shared__ float parts[2][kWarp];
  follow_previous();
  const int teams = static_cast<int>(blockDim.x) / team, my_team = static_cast<int>(threadIdx.x) / team;
  const int rank = static_cast<int>(threadIdx.x) % team;
  const std::int64_t begin = blockIdx.x * rows_a_block, end = min(a.rows, begin + rows_a_block);
  float share[kHeld][kCount] = {};
  // Registers are for the row; the weight of a wide one is read again, from the L1.
  uint4 only_weight{};
  if (kHeld == 1 && rank * kCount < a.width) only_weight = raw_at<T>(a.weight, rank * kCount);
  const auto raw_weight = [&](int at) { return kHeld == 1 ? only_weight : raw_at<T>(a.weight, at); };
  int turn = 0;
  for (std::int64_t first = begin; first < end; first += teams, turn ^= 1) {
    const std::int64_t row = first + my_team;
    const bool mine = row < end;
    uint4 raw_s[kHeld], raw_d[kHeld], raw_residual[kHeld] = {};  // no bit set: zeros of any type
    float s[kCount], d[kCount], w[kCount], dot = 0, inv_rms = 0;
    if (mine) {
      inv_rms = a.inv_rms[row];
#pragma unroll
      for (int held = 0; held < kHeld; ++held) {
        const int at = (held * team + rank) * kCount;
        if (at >= a.width) continue;
        raw_s[held] = raw_at<T>(a.s, row * a.width + at);
        raw_d[held] = raw_at<T>(a.d_out, row * a.width + at);
        if (a.d_residual != nullptr) raw_residual[held] = raw_at<T>(a.d_residual, row * a.width + at);
      }
#pragma unroll
      for (int held = 0; held < kHeld; ++held) {
        const int at = (held * team + rank) * kCount;
        if (at >= a.width) continue;
        values_of<T>(raw_s[held], s);
        values_of<T>(raw_d[held], d);
        values_of<T>(raw_weight(at), w);
#pragma unroll
        for (int i = 0; i < kCount; ++i) dot += d[i] * w[i] * s[i];
      }
    }
    // Two sets of parts in turn: a warp that is still reading one has not passed the next row's barrier.
    dot = team_reduce(dot, parts[turn], team);
    if (!mine) continue;
    // out = s q w with q = (mean(s^2) + eps)^(-1/2): dq/ds_i = -q^3 s_i / width.
    const float pull = dot * inv_rms * inv_rms * inv_rms / static_cast<float>(a.width);
#pragma unroll
    for (int held = 0; held < kHeld; ++held) {
      const int at = (held * team + rank) * kCount;
      if (at >= a.width) continue;
      float out[kCount];
      values_of<T>(raw_s[held], s);
      values_of<T>(raw_d[held], d);
      values_of<T>(raw_weight(at), w);
      values_of<T>(raw_residual[held], out);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        share[held][i] += d[i] * s[i] * inv_rms;
        out[i] += d[i] * w[i] * inv_rms - s[i] * pull;
      }
      store(static_cast<T*>(a.d_x) + row * a.width + at, out);
    }
  }
  float* shares = static_cast<float*>(a.workspace) + static_cast<std::int64_t>(blockIdx.x) * a.width;
  for (int team_turn = 0; team_turn < teams; ++team_turn) {
    if (team_turn > 0) __syncthreads();  // the team before has left its sum
    if (my_team != team_turn) continue;
#pragma unroll
    for (int held = 0; held < kHeld; ++held) {
      const int at = (held * team + rank) * kCount;
      if (at >= a.width) continue;
      if (team_turn > 0) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) share[held][i] += meeting[at + i];
      }
      float* to = team_turn == teams - 1 ? shares : meeting;
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[at + i] = share[held][i];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kLoopThreads) backward_loop_kernel(RmsNormBackward a, std::int64_t rows_a_block) {
  __shared__ float parts[kWarp];
  follow_previous();
  const std::int64_t begin = blockIdx.x * rows_a_block, end = min(a.rows, begin + rows_a_block);
  const T* weight = static_cast<const T*>(a.weight);
  float* shares = static_cast<float*>(a.workspace) + static_cast<std::int64_t>(blockIdx.x) * a.width;
  for (std::int64_t row = begin; row < end; ++row) {
    const T *s = static_cast<const T*>(a.s) + row * a.width, *d_out = static_cast<const T*>(a.d_out) + row * a.width;
    const T* residual = static_cast<const T*>(a.d_residual) + row * a.width;
    const float inv_rms = a.inv_rms[row];
    float dot = 0;
    for (std::int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
      dot += to_float(d_out[i]) * to_float(weight[i]) * to_float(s[i]);
    }
    dot = block_reduce(dot, parts, 0.0f);
    const float pull = dot * inv_rms * inv_rms * inv_rms / static_cast<float>(a.width);
    for (std::int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
      const float si = to_float(s[i]), di = to_float(d_out[i]);
      float value = di * to_float(weight[i]) * inv_rms - si * pull;
      if (a.d_residual != nullptr) value += to_float(residual[i]);
      shares[i] = (row == begin ? 0.0f : shares[i]) + di * si * inv_rms;
      static_cast<T*>(a.d_x)[row * a.width + i] = from_float<T>(value);
    }
  }
}

/// d_weight (+)= the sum of the shares of each column. A thread adds every kShareRows-th share of a column; those sums
/// meet in shared memory.
template <class G>
__global__ void __launch_bounds__(kColumns* kShareRows)
    weight_gradient_kernel(const float* shares, std::int64_t count, std::int64_t width, bool accumulate, G* d_weight) {
  __shared__ float sums[kShareRows][kColumns];
  follow_previous();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (std::int64_t share = threadIdx.y; share < count; share += kShareRows) sum += shares[share * width + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  for (int half = kShareRows / 2; half > 0; half /= 2) {
    __syncthreads();  // the sums of the round before are visible
    if (static_cast<int>(threadIdx.y) < half) sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
  }
  if (threadIdx.y == 0 && column < width) {
    const float total = sums[0][threadIdx.x] + (accumulate ? to_float(d_weight[column]) : 0.0f);
    d_weight[column] = from_float<G>(total);
  }
}

/// Blocks of the backward, and so shares; the shape alone decides.
std::int64_t rows_a_block(std::int64_t rows, int teams) {
  return divide_up(divide_up(rows, kShares), teams) * teams;
}

}  // namespace

void rmsnorm_forward(const Context& context, const RmsNormForward& a) {
  if (a.rows == 0) return;
  WM_CHECK(a.rows <= kMaxGrid, "too many rows for one grid");
  const DeviceGuard guard(context.device());
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const Shape shape(a.width, kLanes<T>, aligned(a.x, a.addend, a.sum, a.weight, a.out));
    const unsigned grid = grid_of(a.rows);
    if (!shape.held) {
      launch(context, forward_loop_kernel<T>, grid, shape.team, 0, a);
    } else if (shape.per_thread == 1) {
      launch(context, forward_kernel<1, T>, grid, shape.team, 0, a);
    } else {
      launch(context, forward_kernel<kWideHeld, T>, grid, shape.team, 0, a);
    }
  });
  check_launch();
}

std::size_t workspace_bytes(const RmsNormBackward& a) {
  return static_cast<std::size_t>(std::min(a.rows, kShares) * a.width) * sizeof(float);
}

void rmsnorm_backward(const Context& context, const RmsNormBackward& a) {
  const DeviceGuard guard(context.device());
  std::int64_t shares = 0;
  if (a.rows > 0) {
    for_storage(a.dtype, [&](auto type) {
      using T = decltype(type);
      const Shape shape(a.width, kLanes<T>, aligned(a.s, a.weight, a.d_out, a.d_residual, a.d_x, a.workspace));
      const int teams = static_cast<int>(std::min<std::int64_t>(shape.teams, divide_up(a.rows, kShares)));
      const std::int64_t rows = rows_a_block(a.rows, teams);
      shares = divide_up(a.rows, rows);
      const unsigned threads = shape.team * static_cast<unsigned>(teams);
      const int team = static_cast<int>(shape.team);
      if (!shape.held) {
        launch(context, backward_loop_kernel<T>, grid_of(shares), threads, 0, a, rows);
      } else if (shape.per_thread == 1) {
        const std::size_t shared = teams > 1 ? static_cast<std::size_t>(a.width) * sizeof(float) : 0;
        launch(context, backward_kernel<1, T>, grid_of(shares), threads, shared, a, team, rows);
      } else {
        launch(context, backward_kernel<kWideHeld, T>, grid_of(shares), threads, 0, a, team, rows);
      }
    });
    check_launch();
  }
  for_storage(a.gradient_dtype, [&](auto type) {
    using G = decltype(type);
    launch(context, weight_gradient_kernel<G>, grid_of(divide_up(a.width, kColumns)), dim3(kColumns, kShareRows), 0,
           static_cast<const float*>(a.workspace), shares, a.width, a.accumulate, static_cast<G*>(a.d_weight));
  });
  check_launch();
}

}  // namespace warpmeter::layers::cuda
