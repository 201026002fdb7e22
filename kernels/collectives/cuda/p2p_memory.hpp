#pragma once

#include <cstdint>
#include <cstring>

/// Every access of the peer-to-peer kernels to memory that another GPU reads or writes. On the GPU these are PTX of the
/// memory model's own words; on the host, where the same protocol runs in threads for its tests, C++ atomics of the
/// same strength, so that ThreadSanitizer sees what the GPU's model promises and no more.

#if defined(__CUDACC__)
#define WM_P2P_FN __host__ __device__ __forceinline__
#else
#define WM_P2P_FN inline
#endif
#if defined(__CUDA_ARCH__)
#define WM_P2P_UNROLL _Pragma("unroll")
#else
#define WM_P2P_UNROLL
#endif

/// Before every access to a flag on the host: where a test lets other threads go first.
#if !defined(WM_P2P_BEFORE_FLAG)
#define WM_P2P_BEFORE_FLAG() static_cast<void>(0)
#endif

namespace warpmeter::collectives::p2p {

struct alignas(16) Words16 {
  std::uint32_t w[4];
};
struct alignas(16) Pair64 {
  std::uint64_t a, b;
};

// --- weak: ordered by flags and barriers alone
// ------------------------------------------------------------------------ Never the non-coherent path (ld.global.nc):
// these lines change while the kernel runs. Not kept in the L1 cache: each is read once.

WM_P2P_FN Words16 load16(const char* p) {
  Words16 v;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(p)
               : "memory");
#else
  std::memcpy(&v, p, 16);
#endif
  return v;
}

WM_P2P_FN void store16(char* p, const Words16& v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
               :
               : "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
               : "memory");
#else
  std::memcpy(p, &v, 16);
#endif
}

/// One aligned element of 1, 2, 4 or 8 bytes.
template <class U>
WM_P2P_FN U load_unit(const char* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const volatile U*>(p);
#else
  U v;
  std::memcpy(&v, p, sizeof(U));
  return v;
#endif
}
template <class U>
WM_P2P_FN void store_unit(char* p, U v) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<volatile U*>(p) = v;
#else
  std::memcpy(p, &v, sizeof(U));
#endif
}

// --- flags, at system scope
// -------------------------------------------------------------------------------------------

/// Two 64-bit words, each of which arrives whole, in any order.
WM_P2P_FN Pair64 load_pair_relaxed(const void* p) {
  Pair64 v;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(p) : "memory");
#else
  WM_P2P_BEFORE_FLAG();
  const auto* words = static_cast<const std::uint64_t*>(p);
  v.a = __atomic_load_n(words, __ATOMIC_RELAXED);
  v.b = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
#endif
  return v;
}

WM_P2P_FN void store_pair_relaxed(void* p, Pair64 v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" : : "l"(p), "l"(v.a), "l"(v.b) : "memory");
#else
  WM_P2P_BEFORE_FLAG();
  auto* words = static_cast<std::uint64_t*>(p);
  __atomic_store_n(words, v.a, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, v.b, __ATOMIC_RELAXED);
#endif
}

/// Publishes what this thread has written, and what others of its block had before the last barrier.
WM_P2P_FN void store_release(std::uint32_t* p, std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
#else
  WM_P2P_BEFORE_FLAG();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}

WM_P2P_FN std::uint32_t load_acquire(const std::uint32_t* p) {
#if defined(__CUDA_ARCH__)
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  WM_P2P_BEFORE_FLAG();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

WM_P2P_FN std::uint32_t load_relaxed(const std::uint32_t* p) {
#if defined(__CUDA_ARCH__)
  std::uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

WM_P2P_FN void store_relaxed(std::uint32_t* p, std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}

/// True when `p` was 0 and is `v` now. On memory of this GPU.
WM_P2P_FN bool set_if_zero(std::uint32_t* p, std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(p, 0U, v) == 0U;
#else
  std::uint32_t none = 0;
  return __atomic_compare_exchange_n(p, &none, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
#endif
}

WM_P2P_FN void fence_system() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.sys;" : : : "memory");
#elif !defined(__SANITIZE_THREAD__)  // which knows no fences
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

/// A release made of a fence and relaxed stores, and what acquires it: relaxed loads until the words are there, then
/// acquire_pairs(). ThreadSanitizer wants both said of the accesses themselves.
WM_P2P_FN void store_pairs_release(void* p, Pair64 first, Pair64 second) {
#if defined(__CUDA_ARCH__)
  fence_system();
  store_pair_relaxed(p, first);
  store_pair_relaxed(static_cast<char*>(p) + 16, second);
#else
  WM_P2P_BEFORE_FLAG();
  auto* words = static_cast<std::uint64_t*>(p);
  __atomic_store_n(words, first.a, __ATOMIC_RELEASE);
  __atomic_store_n(words + 1, first.b, __ATOMIC_RELEASE);
  __atomic_store_n(words + 2, second.a, __ATOMIC_RELEASE);
  __atomic_store_n(words + 3, second.b, __ATOMIC_RELEASE);
#endif
}
WM_P2P_FN Pair64 load_pair_to_acquire(const void* p) {
#if defined(__CUDA_ARCH__)
  return load_pair_relaxed(p);
#else
  WM_P2P_BEFORE_FLAG();
  const auto* words = static_cast<const std::uint64_t*>(p);
  return {__atomic_load_n(words, __ATOMIC_ACQUIRE), __atomic_load_n(words + 1, __ATOMIC_ACQUIRE)};
#endif
}
WM_P2P_FN void acquire_pairs() {
#if defined(__CUDA_ARCH__)
  fence_system();
#endif
}

// --- any alignment
// ----------------------------------------------------------------------------------------------------

WM_P2P_FN bool is_aligned(const void* p, unsigned bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) & (bytes - 1U)) == 0;
}

/// `valid` bytes (a multiple of U) in units of U, from the low end of the words up.
template <class U, int kWords>
WM_P2P_FN void load_units(std::uint32_t (&words)[kWords], const char* p, int valid) {
  WM_P2P_UNROLL
  for (int at = 0; at < 4 * kWords; at += static_cast<int>(sizeof(U))) {
    if (at < valid) words[at / 4] |= static_cast<std::uint32_t>(load_unit<U>(p + at)) << (8 * (at % 4));
  }
}
template <class U, int kWords>
WM_P2P_FN void store_units(char* p, const std::uint32_t (&words)[kWords], int valid) {
  WM_P2P_UNROLL
  for (int at = 0; at < 4 * kWords; at += static_cast<int>(sizeof(U))) {
    if (at < valid) store_unit<U>(p + at, static_cast<U>(words[at / 4] >> (8 * (at % 4))));
  }
}

/// The first `valid` of 4 kWords bytes, zeros behind them.
template <int kWords>
WM_P2P_FN void load_any(std::uint32_t (&words)[kWords], const char* p, int valid) {
  WM_P2P_UNROLL
  for (int i = 0; i < kWords; ++i) words[i] = 0;
  if (valid % 4 == 0 && is_aligned(p, 4)) return load_units<std::uint32_t>(words, p, valid);
  if (valid % 2 == 0 && is_aligned(p, 2)) return load_units<std::uint16_t>(words, p, valid);
  load_units<std::uint8_t>(words, p, valid);
}
template <int kWords>
WM_P2P_FN void store_any(char* p, const std::uint32_t (&words)[kWords], int valid) {
  if (valid % 4 == 0 && is_aligned(p, 4)) return store_units<std::uint32_t>(p, words, valid);
  if (valid % 2 == 0 && is_aligned(p, 2)) return store_units<std::uint16_t>(p, words, valid);
  store_units<std::uint8_t>(p, words, valid);
}

}  // namespace warpmeter::collectives::p2p
