#pragma once

// What the kernels of this room share: storage types as fp32, 16-byte vectors, sums over warps and blocks, launches.
//
// Memory goes in aligned vectors of 16 bytes. Arithmetic is fp32; a value is rounded to nearest even where it is
// stored.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers::cuda {

constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;
constexpr std::int64_t kMaxGrid = 0x7fffffff;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

__host__ __device__ constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// --- Values --------------------------------------------------------------------------------------------------------

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
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return x;
  }
}

/// Two values of a word of T; one of fp32.
template <class T>
__device__ __forceinline__ void unpack(unsigned word, float* x) {
  if constexpr (std::is_same_v<T, float>) {
    x[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    x[0] = pair.x;
    x[1] = pair.y;
  }
}
template <class T>
__device__ __forceinline__ unsigned pack(const float* x) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(x[0]);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
    return reinterpret_cast<const unsigned&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(x[0], x[1]);
    return reinterpret_cast<const unsigned&>(pair);
  }
}

/// `kCount` neighbours of T as fp32, and back. One goes as it is; more go in vectors of 8 or 16 bytes, to which the
/// address must be aligned.
template <int kCount, class T>
__device__ __forceinline__ void load(const T* from, float (&x)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T)), kPerWord = 4 / static_cast<int>(sizeof(T));
  if constexpr (kCount == 1) {
    x[0] = to_float(*from);
  } else if constexpr (kBytes == 8) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    unpack<T>(raw.x, x);
    unpack<T>(raw.y, x + kPerWord);
  } else {
    static_assert(kBytes % kVectorBytes == 0);
#pragma unroll
    for (int part = 0; part < kCount; part += kLanes<T>) {
      const uint4 raw = *reinterpret_cast<const uint4*>(from + part);
      unpack<T>(raw.x, x + part);
      unpack<T>(raw.y, x + part + kPerWord);
      unpack<T>(raw.z, x + part + 2 * kPerWord);
      unpack<T>(raw.w, x + part + 3 * kPerWord);
    }
  }
}

template <int kCount, class T>
__device__ __forceinline__ void store(T* to, const float (&x)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T)), kPerWord = 4 / static_cast<int>(sizeof(T));
  if constexpr (kCount == 1) {
    *to = from_float<T>(x[0]);
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x), pack<T>(x + kPerWord));
  } else {
    static_assert(kBytes % kVectorBytes == 0);
#pragma unroll
    for (int part = 0; part < kCount; part += kLanes<T>) {
      *reinterpret_cast<uint4*>(to + part) =
          make_uint4(pack<T>(x + part), pack<T>(x + part + kPerWord), pack<T>(x + part + 2 * kPerWord),
                     pack<T>(x + part + 3 * kPerWord));
    }
  }
}

/// Rows that begin anywhere: elements between the last 16-byte boundary and a row's first one. Vectors of the row are
/// those at -lead, -lead + lanes, ...; the ones at its two ends are only partly in it.
template <class T>
__device__ __forceinline__ int lead_of(const T* row) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % kVectorBytes / sizeof(T));
}
/// The elements [at, at + lanes) of a row of `end` elements, `fill` for those outside. row + at is aligned.
template <class T, class Index>
__device__ __forceinline__ void load_within(const T* row, Index at, Index end, float fill, float (&x)[kLanes<T>]) {
  if (at >= 0 && at + kLanes<T> <= end) {
    load(row + at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) x[i] = at + i >= 0 && at + i < end ? to_float(row[at + i]) : fill;
  }
}
/// Writes those of the elements that lie in [0, end).
template <class T, class Index>
__device__ __forceinline__ void store_within(T* row, Index at, Index end, const float (&x)[kLanes<T>]) {
  if (at >= 0 && at + kLanes<T> <= end) {
    store(row + at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes<T>; ++i) {
      if (at + i >= 0 && at + i < end) row[at + i] = from_float<T>(x[i]);
    }
  }
}

/// The values as they come back from storage.
template <class T, int kCount>
__device__ __forceinline__ void round_to(float (&x)[kCount]) {
  if constexpr (!std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = to_float(from_float<T>(x[i]));
  }
}

// --- Functions -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
/// d silu(x) / dx, s = sigmoid(x).
__device__ __forceinline__ float silu_slope(float x, float s) {
  return s * (1.0f + x * (1.0f - s));
}

// --- Sums ----------------------------------------------------------------------------------------------------------

struct Add {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class V, class Operation = Add>
__device__ __forceinline__ V warp_reduce(V x, Operation operation = {}) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = operation(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

/// Over the whole block (a multiple of 32 threads), the same value in every thread. `parts`: 32 shared values that the
/// block does not touch otherwise. Starts with a barrier: it may be called again at once.
template <class V, class Operation = Add>
__device__ __forceinline__ V block_reduce(V x, V* parts, V empty, Operation operation = {}) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  x = warp_reduce(x, operation);
  __syncthreads();  // every warp has read what the last call left in `parts`
  if (lane == 0) parts[warp] = x;
  __syncthreads();  // `parts` is visible to all warps
  return warp_reduce(lane < static_cast<int>(blockDim.x) / kWarp ? parts[lane] : empty, operation);
}

// --- Host ----------------------------------------------------------------------------------------------------------

inline cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

/// Calls body(T{}) with the storage type of dtype: float, __nv_bfloat16 or __half.
template <class Body>
void for_storage(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::fp32:
      return body(float{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    case DType::fp16:
      return body(__half{});
    default:
      WM_CHECK(false, "operations store fp32, bf16 or fp16");
  }
}

/// True when every address (null ones aside) is aligned to 16 bytes.
template <class... Pointers>
bool aligned(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % kVectorBytes == 0) && ...);
}

inline unsigned grid_of(std::int64_t blocks) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxGrid));
}
inline unsigned round_to_warps(std::int64_t threads) {
  return static_cast<unsigned>(divide_up(std::max<std::int64_t>(threads, 1), kWarp) * kWarp);
}

}  // namespace warpmeter::layers::cuda
