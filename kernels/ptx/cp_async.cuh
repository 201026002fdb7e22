#pragma once

#include <cstdint>

#include "kernels/ptx/l2_policy.cuh"

namespace warpmeter::ptx {

/// Copies 16 bytes from global to shared memory past the registers and L1; the last 16 - `source_bytes` bytes are
/// zeros. With 0 source bytes nothing is read.
__device__ __forceinline__ void cp_async_16(std::uint32_t destination, const void* source, std::uint32_t source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(source_bytes)
               : "memory");
}

/// The same with what the L2 cache should do with the line.
__device__ __forceinline__ void cp_async_16(std::uint32_t destination, const void* source, std::uint32_t source_bytes,
                                            L2Policy policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(destination),
               "l"(source), "r"(source_bytes), "l"(static_cast<std::uint64_t>(policy))
               : "memory");
}

/// The same as the first for one 4-byte element.
__device__ __forceinline__ void cp_async_4(std::uint32_t destination, const void* source, std::uint32_t source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source), "r"(source_bytes)
               : "memory");
}

/// Closes the group of copies issued by this thread since the last commit.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` of this thread's groups are under way. Other threads see the data after a barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace warpmeter::ptx
