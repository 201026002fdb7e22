#pragma once

// Elementwise and row kernels over score matrices, for one storage type T: see row_ops.hpp for what each computes.
//
//   in, out    dense (rows, kv_len) of T, 16-byte aligned; arithmetic fp32, one rounding to T at the end
//   softmax    P = 2^(s c - o) / sum, c = factor log2(e), o the largest s c;  LSE = o ln(2) + ln(sum)
//   backward   dS = P (dP - sum(P dP)) factor
//
// Memory goes in aligned vectors of 16 bytes. A row that does not begin on such a boundary is covered from the boundary
// before it: the vectors at its two ends go element by element, so nothing outside the row is touched.
//
// Grid: elementwise kernels give a block kChunkVectors consecutive vectors. Row kernels give a warp (short rows) or a
// block (longer ones) one row at a time, held in registers between its one read and its one write: a thread of rank r
// of n holds the vectors r, r + n, ... Rows beyond that are read twice, the second time from their end, where the L2
// cache still has them. The grid covers all rows, or as many as a grid may have blocks, and goes on from there.
//
// Shared memory: one pair of floats a warp, where a block has a row. No atomics: same bits on every run.
//
// Over 600 lines: the kernels share their loads at unaligned row ends and are instantiated together, one file a type.

#include <cstdint>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/cuda/row_ops.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::detail::row_ops_kernels {

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kWarpRowsThreads = 128;  // block of warps that have a row each
constexpr int kElementwiseThreads = 256;
constexpr int kVectorsPerThread = 4;  // of elementwise kernels: loads in flight
constexpr int kStreamThreads = 512;   // block that reads its row twice
constexpr int kMaxGrid = 0x7fffffff;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// --- Vectors -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// 16 bytes of T as they are in memory.
template <class T>
union Vector {
  uint4 raw;
  T lanes[kLanes<T>];
  __device__ Vector() {}
};

template <class T>
__device__ __forceinline__ void widen(const Vector<T>& v, float (&x)[kLanes<T>]) {
#pragma unroll
  for (int i = 0; i < kLanes<T>; ++i) x[i] = to_float(v.lanes[i]);
}
template <class T>
__device__ __forceinline__ Vector<T> narrow(const float (&x)[kLanes<T>]) {
  Vector<T> v;
  if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) v.lanes[i] = x[i];
  } else {
    unsigned pairs[4];  // two conversions at once
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        pairs[i] = reinterpret_cast<const unsigned&>(pair);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        pairs[i] = reinterpret_cast<const unsigned&>(pair);
      }
    }
    v.raw = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
  return v;
}

/// The elements [at, at + lanes) of a row of `end` elements; `fill` for those outside. row + at is 16-byte aligned.
template <class T, class Index>
__device__ __forceinline__ Vector<T> load(const T* row, Index at, Index end, float fill) {
  Vector<T> v;
  if (at >= 0 && at + kLanes<T> <= end) {
    v.raw = *reinterpret_cast<const uint4*>(row + at);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) {
      v.lanes[i] = at + i >= 0 && at + i < end ? row[at + i] : from_float<T>(fill);
    }
  }
  return v;
}
/// Writes those of the elements that lie in [0, end).
template <class T, class Index>
__device__ __forceinline__ void store(T* row, Index at, Index end, const Vector<T>& v) {
  if (at >= 0 && at + kLanes<T> <= end) {
    *reinterpret_cast<uint4*>(row + at) = v.raw;
  } else {
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) {
      if (at + i >= 0 && at + i < end) row[at + i] = v.lanes[i];
    }
  }
}

// --- Reductions ----------------------------------------------------------------------------------------------------

/// Part of a softmax's denominator: sum of 2^(s c - offset). An empty part has offset -inf and sum 0.
struct Denominator {
  float offset, sum;
};

constexpr Denominator kNothing{kMinusInfinity, 0.0f};

/// What a sum with offset `from` is multiplied by to have the offset `to` >= from.
__device__ __forceinline__ float rescale(float from, float to) {
  return from == kMinusInfinity ? 0.0f : exp2f(from - to);
}
/// The offset that exponents are taken with: any finite one gives zeros for a row of -inf alone, while a NaN stays one.
__device__ __forceinline__ float exponent_offset(float offset) {
  return offset == kMinusInfinity ? 0.0f : offset;
}

__device__ __forceinline__ Denominator warp_combine(Denominator d) {
  float offset = d.offset;
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) offset = fmaxf(offset, __shfl_xor_sync(~0u, offset, mask));
  float sum = d.sum * rescale(d.offset, offset);
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  return {offset, sum};
}
__device__ __forceinline__ float warp_combine(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

/// Over the whole block, in every thread of it. `again`: the block has combined before, and slow warps may still read.
template <class Part>
__device__ __forceinline__ Part block_combine(Part part, Part empty, bool again) {
  __shared__ Part parts[kMaxThreads / kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  part = warp_combine(part);
  if (again) __syncthreads();  // frees `parts`: every warp has read the last row's
  if (lane == 0) parts[warp] = part;
  __syncthreads();  // `parts` is visible to all warps
  return warp_combine(lane < warps ? parts[lane] : empty);
}

// --- Rows ----------------------------------------------------------------------------------------------------------

/// Who works on a row: a warp or a block.
template <bool kWarpRows>
struct Team {
  __device__ static int size() { return kWarpRows ? kWarp : static_cast<int>(blockDim.x); }
  __device__ static int rank() {
    return kWarpRows ? static_cast<int>(threadIdx.x) % kWarp : static_cast<int>(threadIdx.x);
  }
  __device__ static std::int64_t teams() {
    return static_cast<std::int64_t>(gridDim.x) * (kWarpRows ? blockDim.x / kWarp : 1);
  }
  __device__ static std::int64_t first_row() {
    if constexpr (!kWarpRows) return blockIdx.x;
    return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  }
  template <class Part>
  __device__ static Part combine(Part part, Part empty, bool again) {
    if constexpr (kWarpRows) return warp_combine(part);
    return block_combine(part, empty, again);
  }
};

/// One row's place and how far it matters. Index is int where rows are held in registers.
template <class T, class Index>
struct Row {
  std::int64_t index;   ///< of all rows
  std::int64_t offset;  ///< of its first element
  Index visible, end;   ///< ScoreRows::visible() and zeros_end()
  Index lead;           ///< elements from the last 16-byte boundary to its first element

  __device__ Row(const ScoreRows& rows, std::int64_t turn, Order order)
      : index(order == Order::descending ? rows.rows - 1 - turn : turn), offset(index * rows.kv_len) {
    std::int64_t query = 0;
    if (rows.causal) {
      query = rows.rows >> 32 == 0 ? static_cast<std::uint32_t>(index) % static_cast<std::uint32_t>(rows.seq_len)
                                   : index % rows.seq_len;
    }
    visible = static_cast<Index>(rows.visible(query));
    end = static_cast<Index>(rows.zeros_end(query));
    lead = static_cast<Index>(offset % kLanes<T>);
  }
};

/// Exponentials of a vector's elements in place; what they add up to with an offset of the vector's own thread.
template <int kLaneCount>
__device__ __forceinline__ float exponentials(float (&x)[kLaneCount], float factor, float offset) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneCount; ++i) {
    x[i] = exp2f(fmaf(x[i], factor, -offset));
    sum += x[i];
  }
  return sum;
}
template <int kLaneCount>
__device__ __forceinline__ float largest(const float (&x)[kLaneCount], float so_far) {
#pragma unroll
  for (int i = 0; i < kLaneCount; ++i) so_far = fmaxf(so_far, x[i]);
  return so_far;
}

__device__ __forceinline__ float log_sum(const Denominator& total) {
  return total.sum == 0.0f ? kMinusInfinity : fmaf(total.offset, kLn2, logf(total.sum));
}
__device__ __forceinline__ float inverse(const Denominator& total) {
  return total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
}

/// Softmax of rows of up to team size * kVectors vectors. `factor`: of s, times log2(e).
template <class T, int kVectors, bool kWarpRows, int kThreads>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(ScoreRows rows, const T* in, T* out, float* lse, float factor, Order order) {
  using Rows = Team<kWarpRows>;
  constexpr int kWidth = kLanes<T>;
  const std::int64_t first = Rows::first_row();
  for (std::int64_t turn = first; turn < rows.rows; turn += Rows::teams()) {
    const Row<T, int> row(rows, turn, order);
    const int start = Rows::rank() * kWidth - row.lead, step = Rows::size() * kWidth;
    float x[kVectors][kWidth];
    float most = kMinusInfinity;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int at = start + k * step;
      if (at < row.visible) {
        widen(load(in + row.offset, at, row.visible, kMinusInfinity), x[k]);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[k][i] = kMinusInfinity;
      }
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) most = largest(x[k], most);
    Denominator mine{most * factor, 0.0f};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (start + k * step < row.visible) {
        mine.sum += exponentials(x[k], factor, exponent_offset(mine.offset));
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[k][i] = 0.0f;
      }
    }
    const Denominator total = Rows::combine(mine, kNothing, turn != first);
    if (Rows::rank() == 0) lse[row.index] = log_sum(total);
    const float share = rescale(mine.offset, total.offset) * inverse(total);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int at = start + k * step;
      if (at >= row.end) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[k][i] *= share;
      store(out + row.offset, at, row.end, narrow<T>(x[k]));
    }
  }
}

/// Softmax of rows of any length, in two reads: the first keeps a running denominator in each thread.
template <class T, int kVectors>
__global__ void __launch_bounds__(kStreamThreads)
    softmax_stream_kernel(ScoreRows rows, const T* in, T* out, float* lse, float factor, Order order) {
  using Rows = Team<false>;
  constexpr int kWidth = kLanes<T>;
  const std::int64_t first = Rows::first_row();
  for (std::int64_t turn = first; turn < rows.rows; turn += Rows::teams()) {
    const Row<T, std::int64_t> row(rows, turn, order);
    const std::int64_t start = Rows::rank() * kWidth - row.lead, step = Rows::size() * kWidth;
    Denominator mine = kNothing;
    for (std::int64_t chunk = start; chunk < row.visible; chunk += kVectors * step) {
      float x[kVectors][kWidth];
      float most = kMinusInfinity;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        widen(load(in + row.offset, chunk + k * step, row.visible, kMinusInfinity), x[k]);
      }
#pragma unroll
      for (int k = 0; k < kVectors; ++k) most = largest(x[k], most);
      const float offset = fmaxf(mine.offset, most * factor);
      mine.sum *= rescale(mine.offset, offset);
      mine.offset = offset;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) mine.sum += exponentials(x[k], factor, exponent_offset(offset));
    }
    const Denominator total = Rows::combine(mine, kNothing, turn != first);
    if (Rows::rank() == 0) lse[row.index] = log_sum(total);
    const float share = inverse(total), offset = exponent_offset(total.offset);
    const std::int64_t chunks = row.end <= start ? 0 : (row.end - start + kVectors * step - 1) / (kVectors * step);
    for (std::int64_t chunk = start + (chunks - 1) * kVectors * step; chunk >= start; chunk -= kVectors * step) {
      float x[kVectors][kWidth];
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        widen(load(in + row.offset, chunk + k * step, row.visible, kMinusInfinity), x[k]);
      }
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const std::int64_t at = chunk + k * step;
        if (at >= row.end) continue;
        exponentials(x[k], factor, offset);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[k][i] *= share;
        store(out + row.offset, at, row.end, narrow<T>(x[k]));
      }
    }
  }
}

/// sum of p * dp over a vector.
template <class T>
__device__ __forceinline__ float dot(const Vector<T>& p, const Vector<T>& dp, float sum) {
#pragma unroll
  for (int i = 0; i < kLanes<T>; ++i) sum = fmaf(to_float(p.lanes[i]), to_float(dp.lanes[i]), sum);
  return sum;
}
template <class T>
__device__ __forceinline__ Vector<T> softmax_slope(const Vector<T>& p, const Vector<T>& dp, float d, float factor) {
  float ds[kLanes<T>];
#pragma unroll
  for (int i = 0; i < kLanes<T>; ++i) ds[i] = to_float(p.lanes[i]) * ((to_float(dp.lanes[i]) - d) * factor);
  return narrow<T>(ds);
}

template <class T, int kVectors, bool kWarpRows, int kThreads>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(ScoreRows rows, const T* p, const T* dp, T* ds, float factor, Order order) {
  using Rows = Team<kWarpRows>;
  const std::int64_t first = Rows::first_row();
  for (std::int64_t turn = first; turn < rows.rows; turn += Rows::teams()) {
    const Row<T, int> row(rows, turn, order);
    const int start = Rows::rank() * kLanes<T> - row.lead, step = Rows::size() * kLanes<T>;
    Vector<T> held_p[kVectors], held_dp[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int at = start + k * step;
      held_p[k].raw = held_dp[k].raw = make_uint4(0, 0, 0, 0);
      if (at < row.visible) {
        held_p[k] = load(p + row.offset, at, row.visible, 0.0f);
        held_dp[k] = load(dp + row.offset, at, row.visible, 0.0f);
      }
    }
    float mine = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) mine = dot(held_p[k], held_dp[k], mine);
    const float d = Rows::combine(mine, 0.0f, turn != first);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int at = start + k * step;
      if (at < row.end) store(ds + row.offset, at, row.end, softmax_slope(held_p[k], held_dp[k], d, factor));
    }
  }
}

template <class T, int kVectors>
__global__ void __launch_bounds__(kStreamThreads)
    softmax_backward_stream_kernel(ScoreRows rows, const T* p, const T* dp, T* ds, float factor, Order order) {
  using Rows = Team<false>;
  const std::int64_t first = Rows::first_row();
  for (std::int64_t turn = first; turn < rows.rows; turn += Rows::teams()) {
    const Row<T, std::int64_t> row(rows, turn, order);
    const std::int64_t start = Rows::rank() * kLanes<T> - row.lead, step = Rows::size() * kLanes<T>;
    const auto both = [&](std::int64_t chunk, Vector<T>(&a)[kVectors], Vector<T>(&b)[kVectors]) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        a[k] = load(p + row.offset, chunk + k * step, row.visible, 0.0f);
        b[k] = load(dp + row.offset, chunk + k * step, row.visible, 0.0f);
      }
    };
    float mine = 0.0f;
    for (std::int64_t chunk = start; chunk < row.visible; chunk += kVectors * step) {
      Vector<T> some_p[kVectors], some_dp[kVectors];
      both(chunk, some_p, some_dp);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) mine = dot(some_p[k], some_dp[k], mine);
    }
    const float d = Rows::combine(mine, 0.0f, turn != first);
    const std::int64_t chunks = row.end <= start ? 0 : (row.end - start + kVectors * step - 1) / (kVectors * step);
    for (std::int64_t chunk = start + (chunks - 1) * kVectors * step; chunk >= start; chunk -= kVectors * step) {
      Vector<T> some_p[kVectors], some_dp[kVectors];
      both(chunk, some_p, some_dp);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const std::int64_t at = chunk + k * step;
        if (at < row.end) store(ds + row.offset, at, row.end, softmax_slope(some_p[k], some_dp[k], d, factor));
      }
    }
  }
}

// --- Elementwise ---------------------------------------------------------------------------------------------------

/// First element of a thread's k-th vector, relative to its block's chunk.
template <class T>
__device__ __forceinline__ int chunk_offset(int k) {
  return (k * kElementwiseThreads + static_cast<int>(threadIdx.x)) * kLanes<T>;
}
template <class T>
constexpr std::int64_t kChunkElements = std::int64_t{kElementwiseThreads} * kVectorsPerThread* kLanes<T>;

__device__ __forceinline__ std::int64_t block_turn(Order order) {
  return order == Order::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    scale_kernel(const T* in, T* out, std::int64_t count, float factor, Order order) {
  const std::int64_t chunk = block_turn(order) * kChunkElements<T>;
  Vector<T> v[kVectorsPerThread];
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) v[k] = load(in, chunk + chunk_offset<T>(k), count, 0.0f);
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    float x[kLanes<T>];
    widen(v[k], x);
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) x[i] *= factor;
    store(out, chunk + chunk_offset<T>(k), count, narrow<T>(x));
  }
}

/// The matrix is one array of rows * kv_len elements; each vector finds its row by a 32-bit division.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    mask_kernel(ScoreRows rows, const T* in, T* out, float fill, Order order) {
  const std::int64_t count = rows.rows * rows.kv_len;
  const std::int64_t chunk = block_turn(order) * kChunkElements<T>;
  const auto kv_len = static_cast<std::uint32_t>(rows.kv_len), seq_len = static_cast<std::uint32_t>(rows.seq_len);
  const std::int64_t chunk_row = chunk / rows.kv_len;
  const auto chunk_column = static_cast<std::uint32_t>(chunk - chunk_row * rows.kv_len);
  const auto chunk_query = static_cast<std::uint32_t>(chunk_row % rows.seq_len);
  Vector<T> v[kVectorsPerThread];
  std::uint32_t query[kVectorsPerThread], column[kVectorsPerThread];
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const std::uint32_t place = chunk_column + static_cast<std::uint32_t>(chunk_offset<T>(k));
    const std::uint32_t row = place / kv_len;
    column[k] = place - row * kv_len;
    query[k] = (chunk_query + row) % seq_len;
    // A vector within what its row does not see is not read.
    const std::int64_t visible = rows.visible(query[k]);
    const bool hidden = column[k] >= visible && column[k] + kLanes<T> <= kv_len;
    v[k] = load(in, chunk + chunk_offset<T>(k), hidden ? 0 : count, fill);
  }
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    std::uint32_t q = query[k], c = column[k];
    std::int64_t visible = rows.visible(q);
    if (c + kLanes < T >> kv_len || c + kLanes < T >> visible) {
#pragma unroll
      for (int i = 0; i < kLanes<T>; ++i) {
        if (c >= visible) v[k].lanes[i] = from_float<T>(fill);
        if (++c == kv_len) {
          c = 0;
          q = q + 1 == seq_len ? 0 : q + 1;
          visible = rows.visible(q);
        }
      }
    }
    store(out, chunk + chunk_offset<T>(k), count, v[k]);
  }
}

/// Elements of an operand one by one: for what is rare. in null: zeros.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    write_rows_kernel(const float* in, T* out, Operand strides, std::int64_t batch, std::int64_t heads,
                      std::int64_t rows, std::int64_t head_dim) {
  const std::int64_t count = batch * heads * rows * head_dim;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementwiseThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t row = i / head_dim, matrix = row / rows;
    out[matrix / heads * strides.batch_stride + matrix % heads * strides.head_stride + row % rows * strides.row_stride +
        i % head_dim] = from_float<T>(in == nullptr ? 0.0f : in[i]);
  }
}

// --- Launchers -----------------------------------------------------------------------------------------------------

inline cudaStream_t handle(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}
inline void check_aligned(const void* pointer) {
  WM_CHECK(reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0, "score matrices are 16-byte aligned");
}
inline unsigned grid_of(std::int64_t blocks) {
  return static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid);
}

template <class T>
unsigned elementwise_grid(std::int64_t count) {
  const std::int64_t chunks = (count + kChunkElements<T> - 1) / kChunkElements<T>;
  WM_CHECK(chunks <= kMaxGrid, "a score matrix has more elements than any memory: " + std::to_string(count));
  return static_cast<unsigned>(chunks);
}

template <class T>
void scale(const void* in, void* out, std::int64_t count, float factor, Order order, StreamView stream) {
  check_aligned(in);
  check_aligned(out);
  scale_kernel<T><<<elementwise_grid<T>(count), kElementwiseThreads, 0, handle(stream)>>>(
      static_cast<const T*>(in), static_cast<T*>(out), count, factor, order);
  check_launch();
}

template <class T>
void mask(const ScoreRows& rows, const void* in, void* out, float fill, Order order, StreamView stream) {
  check_aligned(in);
  check_aligned(out);
  mask_kernel<T><<<elementwise_grid<T>(rows.rows * rows.kv_len), kElementwiseThreads, 0, handle(stream)>>>(
      rows, static_cast<const T*>(in), static_cast<T*>(out), fill, order);
  check_launch();
}

/// Vectors that cover any row: one more where rows do not all begin on a boundary.
template <class T>
std::int64_t row_vectors(const ScoreRows& rows) {
  const std::int64_t lead = rows.kv_len % kLanes<T> == 0 ? 0 : kLanes<T> - 1;
  return (rows.kv_len + lead + kLanes<T> - 1) / kLanes<T>;
}
/// Threads that hold a row of `vectors`, `each` a thread: whole warps.
inline unsigned row_threads(std::int64_t vectors, int each) {
  return static_cast<unsigned>(((vectors + each - 1) / each + kWarp - 1) / kWarp * kWarp);
}
inline unsigned warp_rows_grid(const ScoreRows& rows) {
  constexpr int kRows = kWarpRowsThreads / kWarp;
  return grid_of((rows.rows + kRows - 1) / kRows);
}

template <class T>
void softmax(const ScoreRows& rows, const void* in, void* out, float* lse, float factor, Order order,
             StreamView stream) {
  check_aligned(in);
  check_aligned(out);
  // Elements a thread holds: few, for more warps a row, up to 256 threads; then more, which take fewer registers a row.
  constexpr int kFew = 16 / kLanes<T>, kMany = 32 / kLanes<T>, kFewThreads = 256;
  const std::int64_t vectors = row_vectors<T>(rows);
  const auto launch = [&](auto* kernel, unsigned grid, unsigned threads) {
    kernel<<<grid, threads, 0, handle(stream)>>>(rows, static_cast<const T*>(in), static_cast<T*>(out), lse,
                                                 factor * kLog2e, order);
    check_launch();
  };
  if (vectors <= kWarp * kMany) {
    launch(softmax_kernel<T, kMany, true, kWarpRowsThreads>, warp_rows_grid(rows), kWarpRowsThreads);
  } else if (vectors <= kFewThreads * kFew) {
    launch(softmax_kernel<T, kFew, false, kFewThreads>, grid_of(rows.rows), row_threads(vectors, kFew));
  } else if (vectors <= kMaxThreads * kMany) {
    launch(softmax_kernel<T, kMany, false, kMaxThreads>, grid_of(rows.rows), row_threads(vectors, kMany));
  } else {
    launch(softmax_stream_kernel<T, kFew>, grid_of(rows.rows), kStreamThreads);
  }
}

template <class T>
void softmax_backward(const ScoreRows& rows, const void* p, const void* dp, void* ds, float factor, Order order,
                      StreamView stream) {
  check_aligned(p);
  check_aligned(dp);
  check_aligned(ds);
  constexpr int kHeld = 4;  // vectors of each matrix a thread holds: 32 registers
  const std::int64_t vectors = row_vectors<T>(rows);
  const auto launch = [&](auto* kernel, unsigned grid, unsigned threads) {
    kernel<<<grid, threads, 0, handle(stream)>>>(rows, static_cast<const T*>(p), static_cast<const T*>(dp),
                                                 static_cast<T*>(ds), factor, order);
    check_launch();
  };
  if (vectors <= kWarp * kHeld) {
    launch(softmax_backward_kernel<T, kHeld, true, kWarpRowsThreads>, warp_rows_grid(rows), kWarpRowsThreads);
  } else if (vectors <= kMaxThreads * kHeld) {
    launch(softmax_backward_kernel<T, kHeld, false, kMaxThreads>, grid_of(rows.rows), row_threads(vectors, kHeld));
  } else {
    launch(softmax_backward_stream_kernel<T, 2>, grid_of(rows.rows), kStreamThreads);
  }
}

template <class T>
void write_rows(const float* in, const Operand& out, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                std::int64_t head_dim, StreamView stream) {
  const std::int64_t count = batch * heads * rows * head_dim;
  if (count == 0) return;
  write_rows_kernel<T>
      <<<grid_of((count + kElementwiseThreads - 1) / kElementwiseThreads), kElementwiseThreads, 0, handle(stream)>>>(
          in, static_cast<T*>(out.data), out, batch, heads, rows, head_dim);
  check_launch();
}
template <class T>
void zero_rows(const Operand& operand, std::int64_t batch, std::int64_t heads, std::int64_t row_end,
               std::int64_t head_dim, StreamView stream) {
  write_rows<T>(nullptr, operand, batch, heads, row_end, head_dim, stream);
}

template <class T>
constexpr CudaRowOps kRowOps = {scale<T>, mask<T>, softmax<T>, softmax_backward<T>, zero_rows<T>, write_rows<T>};

}  // namespace warpmeter::attention::detail::row_ops_kernels
