#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/primer/kernel.hpp"
#include "kernels/ptx/math.cuh"
#include "kernels/runtime/cuda_check.hpp"

/// What the CUDA parts of the kernels share: 16 bytes at a time between memory and floats, sums and maxima of a block,
/// launching.
namespace warpmeter::primer::cuda_tools {

constexpr unsigned kAllLanes = 0xffffffffu;

/// Elements in 16 bytes, what one thread moves at a time.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

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
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

/// 16 bytes as floats.
template <class T>
__device__ __forceinline__ void unpack(uint4 raw, float (&x)[kPack<T>]) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = ptx::unpack2<T>(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
}

/// The largest number in 16 bytes.
template <class T>
__device__ __forceinline__ float largest(uint4 raw) {
  if constexpr (sizeof(T) == 4) {
    float x[kPack<T>];
    unpack<T>(raw, x);
    return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Pair pairs[4];
    memcpy(pairs, &raw, sizeof(pairs));
    const Pair most = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
    return fmaxf(to_float(most.x), to_float(most.y));
  }
}

/// Floats as 16 bytes, rounded to nearest even.
template <class T>
__device__ __forceinline__ uint4 pack(const float (&x)[kPack<T>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(x[i]);
    } else {
      words[i] = ptx::pack2<T>(x[2 * i], x[2 * i + 1]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Which lines a cache gives up first. A kernel that only reads does better to let its operand go first; one that
/// writes as much is faster with ordinary loads (add on an H200: 130 us against 137 for 256 MiB). `kept_out`: L1 does
/// not take it, so that what else the kernel reads stays there.
enum class Evict { normal, first, kept_out };

__device__ __forceinline__ uint4 load_kept_out(const uint4* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

/// kPack elements from p on, of which `left` are there; the others are `beyond`. One access where p is aligned and all
/// are there. kWhole promises that p is aligned and that all or none are there: then nothing else is compiled.
template <class T, bool kWhole = false, Evict kEvict = Evict::normal>
__device__ __forceinline__ uint4 load_pack(const T* p, std::int64_t left, float beyond = 0.0f) {
  float x[kPack<T>];
#pragma unroll
  for (float& value : x) value = beyond;
  if (kWhole ? left > 0 : left >= kPack<T> && reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
    const auto* const vector = reinterpret_cast<const uint4*>(p);
    if constexpr (kEvict == Evict::kept_out) return load_kept_out(vector);
    return kEvict == Evict::first ? __ldcs(vector) : *vector;
  }
  if constexpr (!kWhole) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] = i < left ? to_float(p[i]) : beyond;
  }
  return pack<T>(x);
}

/// Stores the first `left` of kPack elements. One access where p is aligned and all are stored; kWhole as above.
/// Results are the first lines that a cache gives up.
template <class T, bool kWhole = false>
__device__ __forceinline__ void store_pack(T* p, std::int64_t left, const float (&x)[kPack<T>]) {
  if (kWhole ? left > 0 : left >= kPack<T> && reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
    __stcs(reinterpret_cast<uint4*>(p), pack<T>(x));
  } else if constexpr (!kWhole) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < left) p[i] = from_float<T>(x[i]);
    }
  }
}

/// Word n of the pieces to the right of this thread's, which is `mine`: those of the next threads of the warp. What
/// follows the last thread's, thread `first` has in `behind`, and what follows that, thread `second`.
__device__ __forceinline__ std::uint32_t word_to_the_right(int n, const uint4& mine, const uint4& behind, int first,
                                                           int second) {
  const int beyond = static_cast<int>(threadIdx.x) % 32 + 1 + n / 4 - 32;  // of the warp's pieces
  const std::uint32_t inside = __shfl_down_sync(kAllLanes, (&mine.x)[n % 4], 1 + n / 4);
  const std::uint32_t outside = __shfl_sync(kAllLanes, (&behind.x)[n % 4], beyond > 0 ? second : first);
  return beyond < 0 ? inside : outside;
}

struct Add {
  static constexpr float kNeutral = 0.0f;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  static constexpr float kNeutral = -INFINITY;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Combines the values of a team of kTeam threads (32, or the whole block of kTeam) in an order that is always the
/// same; all get the result. A block's calls after one another need no barrier between them.
template <int kTeam, class Combine>
__device__ __forceinline__ float team_reduce(float x, Combine combine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, mask));
  if constexpr (kTeam > 32) {
    constexpr int kWarps = kTeam / 32;
    __shared__ float of_warps[kWarps];
    __syncthreads();  // the last call's readers are done
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < kWarps ? of_warps[threadIdx.x % 32] : Combine::kNeutral;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, mask));
  }
  return x;
}

/// From each thread's largest score, in units of log2, and its sum of 2^(score - largest) to the team's, in an order
/// that is always the same. kTeam as above, once in a kernel. No score may be infinite where a sum is not 0.
template <int kTeam>
__device__ __forceinline__ void team_merge(float& most, float& sum) {
  const auto of_warp = [](float& m, float& s) {
    const float larger = team_reduce<32>(m, Max());
    s = team_reduce<32>(s * ptx::exp2_approx(m - larger), Add());
    m = larger;
  };
  of_warp(most, sum);
  if constexpr (kTeam > 32) {
    constexpr int kWarps = kTeam / 32;
    __shared__ float2 of_warps[kWarps];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = make_float2(most, sum);
    __syncthreads();
    const float2 other = of_warps[threadIdx.x % kWarps];
    most = other.x;
    sum = threadIdx.x % 32 < kWarps ? other.y : 0.0f;
    of_warp(most, sum);
  }
}

/// A sum that keeps what rounding takes off it (Kahan): a thread's part of a long row would else lose a digit.
struct CompensatedSum {
  float sum = 0.0f, lost = 0.0f;

  __device__ __forceinline__ void add(float x) {
    const float wanted = x - lost, larger = __fadd_rn(sum, wanted);
    lost = __fadd_rn(__fadd_rn(larger, -sum), -wanted);
    sum = larger;
  }
};

/// What online attention knows of the keys so far: the largest score, in units of log2, and the sums of the terms
/// 2^(score - most) and of the terms times the values.
struct OnlineState {
  float most, sum, weighted;

  /// With the keys of another state.
  __device__ __forceinline__ void merge(const OnlineState& other) {
    const float larger = fmaxf(most, other.most);
    if (larger == -INFINITY) return;  // neither has seen a key
    const float mine = ptx::exp2_approx(most - larger), theirs = ptx::exp2_approx(other.most - larger);
    *this = {larger, sum * mine + other.sum * theirs, weighted * mine + other.weighted * theirs};
  }
};

template <class T>
struct Type {
  using type = T;
};
template <int kValue>
using Int = std::integral_constant<int, kValue>;

/// Calls f with Type<T>, T what `dtype` is stored as.
template <class F>
void by_dtype(DType dtype, F&& f) {
  if (dtype == DType::bf16) {
    f(Type<__nv_bfloat16>());
  } else if (dtype == DType::fp16) {
    f(Type<__half>());
  } else {
    f(Type<float>());
  }
}

/// The same for rows of p.cols elements: calls f with Type<T> and whether rows consist of whole pieces of 16 bytes, as
/// std::bool_constant. Their kernels are compiled for both.
template <class F>
void by_dtype_and_rows(const Problem& p, F&& f) {
  by_dtype(p.dtype, [&](auto type) {
    if (p.cols % kPack<typename decltype(type)::type> == 0) {
      f(type, std::true_type());
    } else {
      f(type, std::false_type());
    }
  });
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Blocks along a grid's x, at most what it can have: kernels stride over the rest.
inline unsigned grid_x(std::int64_t blocks) {
  return static_cast<unsigned>(std::min<std::int64_t>(blocks, 0x7fffffff));
}
/// The same along y and z.
inline unsigned grid_yz(std::int64_t blocks) {
  return static_cast<unsigned>(std::min<std::int64_t>(blocks, 65535));
}

inline cudaStream_t handle(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Streaming multiprocessors of the stream's device.
inline int multiprocessors(StreamView stream) {
  int count = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, stream.device.index));
  return count;
}

}  // namespace warpmeter::primer::cuda_tools

namespace warpmeter::primer {
using namespace cuda_tools;
}
