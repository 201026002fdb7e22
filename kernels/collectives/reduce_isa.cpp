// Compiled once for each instruction set, into a namespace of its name. All variants give the same bits. No inline
// function of the standard library here: the linker keeps one copy of those, perhaps the one with wider instructions.

#include "kernels/collectives/detail/reduce.hpp"
#include "kernels/runtime/isa_vec.hpp"

namespace warpmeter::collectives::detail::WM_ISA {
namespace {

using namespace vec::WM_ISA;  // NOLINT: vectors and conversions

constexpr int kUnroll = 4;  // independent accumulators, so that a source's loads overlap

// Sources larger than this come from memory, and are asked for a page ahead: the processor's own prefetching stops at
// the end of each of the small pages that shared memory is made of. Two ranks, 100 MiB: a tenth less time. What is in
// the cache would take a tenth more.
constexpr std::int64_t kFarBytes = std::int64_t{4} << 20;
constexpr std::int64_t kAheadBytes = 4096;
constexpr std::int64_t kLineBytes = 64;

template <class V>
V load_raw(const char* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
void store_raw(char* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

// --- stores past the cache ------------------------------------------------------------------------------------------

/// Where stores of whole vectors past the cache may go.
bool is_streamable(const char* p) {
#if defined(__x86_64__)
  return reinterpret_cast<std::uintptr_t>(p) % (kWidth * 4) == 0;
#else
  static_cast<void>(p);
  return false;
#endif
}

/// A vector to an address that is_streamable().
void store_streaming(char* p, UintVec v) {
#if defined(WM_ISA_avx512)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bit_cast_vec<__m512i>(v));
#elif defined(WM_ISA_avx2)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bit_cast_vec<__m256i>(v));
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), bit_cast_vec<__m128i>(v));
#else
  store_raw(p, v);
#endif
}

/// Such stores are ordered by nothing else: before others are told that the data is there.
void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// --- element types: kWidth of them from and to memory, and the accumulator ------------------------------------------

struct Fp32 {
  using Accumulator = Vec;
  static constexpr int kBytes = 4;
  static Vec load(const char* p) { return load_raw<Vec>(p); }
  static void store(char* p, Vec v) { store_raw(p, v); }
};

struct Int32 {
  using Accumulator = UintVec;  // wraps
  static constexpr int kBytes = 4;
  static UintVec load(const char* p) { return load_raw<UintVec>(p); }
  static void store(char* p, UintVec v) { store_raw(p, v); }
};

struct Bf16 {
  using Accumulator = Vec;
  static constexpr int kBytes = 2;
  static Vec load(const char* p) { return widen_bf16(load_raw<ShortVec>(p)); }
  static void store(char* p, Vec v) { store_raw(p, narrow_bf16(v)); }
};

struct Fp16 {
  using Accumulator = Vec;
  static constexpr int kBytes = 2;
  static Vec load(const char* p) { return widen_fp16(load_raw<ShortVec>(p)); }
  static void store(char* p, Vec v) { store_raw(p, narrow_fp16(v)); }
};

// --- operations -----------------------------------------------------------------------------------------------------

struct Sum {
  template <class V>
  static V combine(V total, V x) {
    return total + x;
  }
};

struct Max {
  static Vec combine(Vec best, Vec x) {
    const IntVec better = (x > best) | (x != x);
    return better ? x : best;
  }
  static UintVec combine(UintVec best, UintVec x) {
    return bit_cast_vec<IntVec>(x) > bit_cast_vec<IntVec>(best) ? x : best;
  }
};

struct Min {
  static Vec combine(Vec best, Vec x) {
    const IntVec better = (x < best) | (x != x);
    return better ? x : best;
  }
  static UintVec combine(UintVec best, UintVec x) {
    return bit_cast_vec<IntVec>(x) < bit_cast_vec<IntVec>(best) ? x : best;
  }
};

/// No division: sum, max, min.
template <class V>
V finish(V total, float /*divisor*/) {
  return total;
}
/// avg. A division, not a product with the rounded inverse: three equal values average to themselves.
Vec divide(Vec total, float divisor) {
  return total / divisor;
}

template <class T, class Op, bool kAverage>
void reduce_elements(const Reduction& r) {
  using V = typename T::Accumulator;
  constexpr int kStepBytes = kWidth * T::kBytes;
  const float divisor = static_cast<float>(r.divisor > 0 ? r.divisor : r.source_count);
  const auto result = [divisor](V total) {
    if constexpr (kAverage) {
      return divide(total, divisor);
    } else {
      return finish(total, divisor);
    }
  };
  // Up to a vector of elements through a buffer: memory past them is not touched.
  const auto reduce_few = [&](std::int64_t at, std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(elements * T::kBytes);
    char lanes[kStepBytes] = {};
    __builtin_memcpy(lanes, r.sources[0] + at, bytes);
    V total = T::load(lanes);
    for (int s = 1; s < r.source_count; ++s) {
      __builtin_memcpy(lanes, r.sources[s] + at, bytes);
      total = Op::combine(total, T::load(lanes));
    }
    T::store(lanes, result(total));
    for (int d = 0; d < r.destination_count; ++d) __builtin_memcpy(r.destinations[d] + at, lanes, bytes);
  };
  std::int64_t i = 0;
  int streamed = r.streamed;
  if (streamed > 0) {
    // As far as the address that whole vectors may go to.
    while (i < r.count && !is_streamable(r.destinations[0] + i * T::kBytes) && i < kWidth * 4) {
      reduce_few(i * T::kBytes, 1);
      ++i;
    }
    for (int d = 0; d < r.streamed; ++d) {
      if (!is_streamable(r.destinations[d] + i * T::kBytes)) streamed = 0;
    }
  }
  const bool far = r.count * T::kBytes * r.source_count > kFarBytes;
  for (; i + kUnroll * kWidth <= r.count; i += kUnroll * kWidth) {
    const std::int64_t at = i * T::kBytes;
    if (far) {
      for (int s = 0; s < r.source_count; ++s) {
        for (std::int64_t line = 0; line < kUnroll * kStepBytes; line += kLineBytes) {
          __builtin_prefetch(r.sources[s] + at + kAheadBytes + line, 1);
        }
      }
    }
    V total[kUnroll];
    const char* first = r.sources[0] + at;
    for (int u = 0; u < kUnroll; ++u) total[u] = T::load(first + u * kStepBytes);
    for (int s = 1; s < r.source_count; ++s) {
      const char* source = r.sources[s] + at;
      for (int u = 0; u < kUnroll; ++u) total[u] = Op::combine(total[u], T::load(source + u * kStepBytes));
    }
    for (int u = 0; u < kUnroll; ++u) total[u] = result(total[u]);
    if (streamed > 0) {
      // Through a buffer, which whole vectors of bytes leave.
      alignas(64) char bytes[kUnroll * kStepBytes];
      for (int u = 0; u < kUnroll; ++u) T::store(bytes + u * kStepBytes, total[u]);
      for (int d = 0; d < streamed; ++d) {
        char* destination = r.destinations[d] + at;
        for (int u = 0; u < kUnroll * kStepBytes; u += kWidth * 4) {
          store_streaming(destination + u, load_raw<UintVec>(bytes + u));
        }
      }
    }
    for (int d = streamed; d < r.destination_count; ++d) {
      char* destination = r.destinations[d] + at;
      for (int u = 0; u < kUnroll; ++u) T::store(destination + u * kStepBytes, total[u]);
    }
  }
  if (streamed > 0) finish_streaming();
  for (; i < r.count; i += kWidth) reduce_few(i * T::kBytes, r.count - i < kWidth ? r.count - i : kWidth);
}

/// The sum in 64 bits, divided towards zero.
void average_int32(const Reduction& r) {
  for (std::int64_t i = 0; i < r.count; ++i) {
    const std::int64_t at = i * 4;
    std::int64_t total = 0;
    for (int s = 0; s < r.source_count; ++s) {
      std::int32_t value;
      __builtin_memcpy(&value, r.sources[s] + at, 4);
      total += value;
    }
    const auto result = static_cast<std::int32_t>(total / (r.divisor > 0 ? r.divisor : r.source_count));
    for (int d = 0; d < r.destination_count; ++d) __builtin_memcpy(r.destinations[d] + at, &result, 4);
  }
}

template <class T>
void reduce_as(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::sum:
      return reduce_elements<T, Sum, false>(r);
    case ReduceOp::avg:
      if constexpr (T::kBytes == 4 && __is_same(typename T::Accumulator, UintVec)) {
        return average_int32(r);
      } else {
        return reduce_elements<T, Sum, true>(r);
      }
    case ReduceOp::max:
      return reduce_elements<T, Max, false>(r);
    case ReduceOp::min:
      return reduce_elements<T, Min, false>(r);
  }
}

}  // namespace

void reduce(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::fp32:
    case DType::tf32:
      return reduce_as<Fp32>(reduction);
    case DType::bf16:
      return reduce_as<Bf16>(reduction);
    case DType::fp16:
      return reduce_as<Fp16>(reduction);
    case DType::int32:
      return reduce_as<Int32>(reduction);
    default:
      return;  // refused by Communicator's argument check
  }
}

void copy_streaming(char* destination, const char* source, std::int64_t bytes) {
  constexpr std::int64_t kVector = kWidth * 4;
  constexpr std::int64_t kStep = 256;
  std::int64_t i = 0;
  // Up to an address that a whole vector may go to.
#if defined(__x86_64__)
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(destination) % kVector);
  if (past != 0) i = kVector - past < bytes ? kVector - past : bytes;
  __builtin_memcpy(destination, source, static_cast<std::size_t>(i));
  for (; i + kStep <= bytes; i += kStep) {
    for (std::int64_t u = 0; u < kStep; u += kVector) {
      store_streaming(destination + i + u, load_raw<UintVec>(source + i + u));
    }
  }
  finish_streaming();
#endif
  __builtin_memcpy(destination + i, source + i, static_cast<std::size_t>(bytes - i));
}

}  // namespace warpmeter::collectives::detail::WM_ISA
