#pragma once

#include <cstddef>

#include "kernels/runtime/allocator.hpp"
#include "tools/harness/detail/timer.hpp"

namespace warpmeter::harness::detail {

/// Bytes to stream through so that a cache of `cache_bytes` (0: unknown) holds nothing else: twice its size, since no
/// cache replaces in strict order of use, bounded by an eighth of `available_bytes` for machines whose cache is large
/// against their memory.
[[nodiscard]] std::size_t flush_bytes(std::size_t cache_bytes, std::size_t available_bytes) noexcept;

/// Evicts the CPU's caches: every thread reads the whole of a buffer, so that each cache of the last level (one a core
/// complex or socket) sees more than it holds, wherever the threads run. Reading leaves clean lines behind: the timed
/// work does not pay for writing them back. The buffer is allocated once, as the harness's own memory.
class CpuCacheFlush final : public CacheFlush {
 public:
  /// Throws OutOfMemory.
  explicit CpuCacheFlush(CachingAllocator& allocator);
  ~CpuCacheFlush() override;
  CpuCacheFlush(const CpuCacheFlush&) = delete;
  CpuCacheFlush& operator=(const CpuCacheFlush&) = delete;

  void flush() override;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  CachingAllocator& allocator_;
  std::size_t bytes_;
  void* buffer_;
};

}  // namespace warpmeter::harness::detail
