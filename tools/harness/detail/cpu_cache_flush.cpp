#include "tools/harness/detail/cpu_cache_flush.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/runtime/parallel.hpp"

namespace warpmeter::harness::detail {
namespace {

constexpr std::size_t kLineBytes = 64;

/// Touches every line once, in order, so that the hardware's prefetchers help.
void read_lines(const unsigned char* begin, std::size_t bytes) {
  const volatile unsigned char* line = begin;  // the reads are the purpose
  for (std::size_t offset = 0; offset < bytes; offset += kLineBytes) (void)line[offset];
}

}  // namespace

std::size_t flush_bytes(std::size_t cache_bytes, std::size_t available_bytes) noexcept {
  constexpr std::size_t kUnknownCache = std::size_t{32} << 20;
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  const std::size_t wanted = 2 * (cache_bytes == 0 ? kUnknownCache : cache_bytes);
  const std::size_t bytes = std::max(kLeast, std::min(wanted, available_bytes / 8));
  return bytes / kLineBytes * kLineBytes;
}

CpuCacheFlush::CpuCacheFlush(CachingAllocator& allocator)
    : allocator_(allocator),
      bytes_(flush_bytes(properties(Device::cpu()).last_level_cache_bytes, free_memory_bytes(Device::cpu()))),
      buffer_(allocator.allocate_for_harness(bytes_)) {
  // Pages never written all map to one page of zeros, which fits in any cache.
  std::memset(buffer_, 0x5A, bytes_);
}

CpuCacheFlush::~CpuCacheFlush() {
  allocator_.free_for_harness(buffer_, bytes_);
}

void CpuCacheFlush::flush() {
  const auto* bytes = static_cast<const unsigned char*>(buffer_);
  parallel_workers([&](int worker, int workers) {
    // Each starts elsewhere: together they fetch every part from memory early on, then find it nearby.
    const std::size_t start =
        bytes_ / static_cast<std::size_t>(workers) * static_cast<std::size_t>(worker) / kLineBytes * kLineBytes;
    read_lines(bytes + start, bytes_ - start);
    read_lines(bytes, start);
  });
}

}  // namespace warpmeter::harness::detail
