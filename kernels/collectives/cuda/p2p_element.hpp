#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/cuda/p2p_memory.hpp"

/// What an element of each type is to the peer-to-peer kernels: accumulators and rounding as ReduceOp says, the bits of
/// the shm backend.
namespace warpmeter::collectives::p2p {

WM_P2P_FN float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
#endif
}
WM_P2P_FN std::uint32_t bits_of(float v) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(v);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
#endif
}

template <class A>
WM_P2P_FN bool is_nan(A v) {
  return v != v;
}

struct Fp32 {
  using Accumulator = float;
  static constexpr int kBytes = 4;
  static WM_P2P_FN Accumulator read(std::uint32_t bits) { return float_of(bits); }
  static WM_P2P_FN std::uint32_t write(Accumulator v) { return bits_of(v); }
};

struct Int32 {
  using Accumulator = std::int64_t;  ///< avg divides the whole sum; of sum the low half is kept
  static constexpr int kBytes = 4;
  static WM_P2P_FN Accumulator read(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }
  static WM_P2P_FN std::uint32_t write(Accumulator v) { return static_cast<std::uint32_t>(v); }
};

#if defined(__CUDACC__)
struct Bf16 {
  using Accumulator = float;
  static constexpr int kBytes = 2;
  static WM_P2P_FN Accumulator read(std::uint32_t bits) { return float_of(bits << 16); }
  static WM_P2P_FN std::uint32_t write(Accumulator v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
};

struct Fp16 {
  using Accumulator = float;
  static constexpr int kBytes = 2;
  static WM_P2P_FN Accumulator read(std::uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
  static WM_P2P_FN std::uint32_t write(Accumulator v) { return __half_as_ushort(__float2half_rn(v)); }
};
#endif

/// Bytes that are moved and not combined: broadcast, all_gather, barrier.
struct Raw {
  using Accumulator = std::uint32_t;
  static constexpr int kBytes = 1;
};

/// kWords words of elements under reduction.
template <class T, int kWords>
struct Accumulators {
  static constexpr int kElements = 4 * kWords / T::kBytes;
  static constexpr int kPerWord = 4 / T::kBytes;
  typename T::Accumulator v[kElements] = {};

  static WM_P2P_FN std::uint32_t bits(const std::uint32_t (&words)[kWords], int element) {
    const std::uint32_t word = words[element / kPerWord];
    if constexpr (T::kBytes == 4) {
      return word;
    } else {
      return (word >> (16 * (element % kPerWord))) & 0xFFFFU;
    }
  }
  WM_P2P_FN void begin(const std::uint32_t (&words)[kWords]) {
    WM_P2P_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] = T::read(bits(words, i));
  }
  /// One source more. avg adds here and divides at the end.
  WM_P2P_FN void add(ReduceOp op, const std::uint32_t (&words)[kWords]) {
    switch (op) {
      case ReduceOp::max:
        WM_P2P_UNROLL
        for (int i = 0; i < kElements; ++i) {
          const auto x = T::read(bits(words, i));
          v[i] = x > v[i] || is_nan(x) ? x : v[i];
        }
        return;
      case ReduceOp::min:
        WM_P2P_UNROLL
        for (int i = 0; i < kElements; ++i) {
          const auto x = T::read(bits(words, i));
          v[i] = x < v[i] || is_nan(x) ? x : v[i];
        }
        return;
      default:
        WM_P2P_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] += T::read(bits(words, i));
    }
  }
  WM_P2P_FN void finish(ReduceOp op, int world_size, std::uint32_t (&words)[kWords]) {
    WM_P2P_UNROLL
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    WM_P2P_UNROLL
    for (int i = 0; i < kElements; ++i) {
      typename T::Accumulator total = v[i];
      if (op == ReduceOp::avg) total /= static_cast<typename T::Accumulator>(world_size);
      words[i / kPerWord] |= T::write(total) << (8 * T::kBytes * (i % kPerWord));
    }
  }
};

/// Copies: the one source's words.
template <int kWords>
struct Accumulators<Raw, kWords> {
  std::uint32_t v[kWords] = {};
  WM_P2P_FN void begin(const std::uint32_t (&words)[kWords]) {
    WM_P2P_UNROLL
    for (int i = 0; i < kWords; ++i) v[i] = words[i];
  }
  WM_P2P_FN void add(ReduceOp /*op*/, const std::uint32_t (&/*words*/)[kWords]) {}
  WM_P2P_FN void finish(ReduceOp /*op*/, int /*world_size*/, std::uint32_t (&words)[kWords]) {
    WM_P2P_UNROLL
    for (int i = 0; i < kWords; ++i) words[i] = v[i];
  }
};

}  // namespace warpmeter::collectives::p2p
