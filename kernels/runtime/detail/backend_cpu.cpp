#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/detail/backend.hpp"
#include "kernels/runtime/detail/host_info.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::detail {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kParallelBytes = std::size_t{4} << 20;  // below this one core copies as fast as the memory goes
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Bytes of [pointer, pointer + bytes) that no page backs yet.
std::size_t untouched_bytes(const void* pointer, std::size_t bytes) {
  constexpr std::size_t kPagesAtOnce = 1 << 16;
  std::vector<unsigned char> resident(kPagesAtOnce);
  std::size_t untouched = 0;
  const std::size_t step = kPagesAtOnce * page_bytes();
  for (std::size_t offset = 0; offset < bytes; offset += step) {
    const std::size_t length = std::min(step, bytes - offset);
    auto* const start = const_cast<char*>(static_cast<const char*>(pointer)) + offset;
    if (mincore(start, length, resident.data()) != 0) continue;
    const auto pages = static_cast<std::ptrdiff_t>((length + page_bytes() - 1) / page_bytes());
    untouched += page_bytes() * static_cast<std::size_t>(std::count_if(resident.begin(), resident.begin() + pages,
                                                                       [](unsigned char r) { return (r & 1) == 0; }));
  }
  return untouched;
}

/// What the kernel itself and rounding may still need when everything promised has been touched.
std::size_t safety_margin(std::size_t total) {
  return std::min<std::size_t>(total / 64, std::size_t{256} << 20);
}

struct CpuEvent {
  std::atomic<double> recorded_ms{-1};
};

CpuEvent& as_event(void* event) {
  return *static_cast<CpuEvent*>(event);
}

/// Work on the CPU runs inline, so streams are names and events are clock readings. Host memory comes in anonymous
/// mappings on 2 MiB boundaries with huge pages asked for.
class CpuBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const noexcept override { return 1; }
  [[nodiscard]] std::string unavailable_reason() const override { return {}; }

  [[nodiscard]] DeviceProperties properties(int /*index*/) const override {
    DeviceProperties p;
    p.name = cpu_name();
    p.cores = usable_cores();
    p.isa = name(cpu_isa());
    p.memory_bytes = host_memory().total;
    p.last_level_cache_bytes = last_level_cache_bytes();
    return p;
  }

  [[nodiscard]] std::size_t total_memory(int /*index*/) const override { return host_memory().total; }

  [[nodiscard]] std::size_t free_memory(int /*index*/) const override {
    const std::lock_guard lock(mutex_);
    return room(untouched());
  }

  int make_current(int /*index*/) const override { return -1; }
  void restore_current(int /*previous*/) const noexcept override {}
  void synchronize(int /*index*/) const override {}

  [[nodiscard]] void* allocate(int /*index*/, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    // Linux hands out addresses freely and kills somebody when the pages are touched, so what was handed out and not
    // touched yet counts as used. Counting it exactly reads the page tables: only when the quick bound does not do.
    if (bytes > room(mapped_) && bytes > room(untouched())) return nullptr;

    const std::size_t length = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    const std::size_t padded = length + kHugePage;
    void* const mapping = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<char*>(mapping);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
    char* const aligned = begin + (misaligned == 0 ? 0 : kHugePage - misaligned);
    if (aligned != begin) munmap(begin, static_cast<std::size_t>(aligned - begin));
    char* const end = begin + padded;
    if (aligned + length != end) munmap(aligned + length, static_cast<std::size_t>(end - (aligned + length)));
    madvise(aligned, length, MADV_HUGEPAGE);  // a wish: a kernel without huge pages refuses, and that is fine
    segments_.emplace(aligned, length);
    mapped_ += length;
    return aligned;
  }

  void free(int /*index*/, void* pointer, std::size_t /*bytes*/) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(pointer);
    if (found == segments_.end()) return;
    munmap(pointer, found->second);
    mapped_ -= found->second;
    segments_.erase(found);
  }

  void copy(void* destination, Device /*destination_device*/, const void* source, Device /*source_device*/,
            std::size_t bytes, int /*index*/, void* /*stream*/) const override {
    if (bytes == 0) return;
    if (bytes < kParallelBytes) {
      std::memmove(destination, source, bytes);
      return;
    }
    const auto d = reinterpret_cast<std::uintptr_t>(destination);
    const auto s = reinterpret_cast<std::uintptr_t>(source);
    if (d < s + bytes && s < d + bytes) {  // chunks of an overlapping copy would race
      std::memmove(destination, source, bytes);
      return;
    }
    for_chunks(bytes, [&](std::size_t offset, std::size_t length) {
      std::memcpy(static_cast<char*>(destination) + offset, static_cast<const char*>(source) + offset, length);
    });
  }

  void fill(void* destination, unsigned char value, std::size_t bytes, int /*index*/, void* /*stream*/) const override {
    if (bytes == 0) return;
    if (bytes < kParallelBytes) {
      std::memset(destination, value, bytes);
      return;
    }
    for_chunks(bytes, [&](std::size_t offset, std::size_t length) {
      std::memset(static_cast<char*>(destination) + offset, value, length);
    });
  }

  [[nodiscard]] void* create_stream(int /*index*/) const override { return new char(0); }
  void destroy_stream(int /*index*/, void* stream) const noexcept override { delete static_cast<char*>(stream); }
  void synchronize_stream(int /*index*/, void* /*stream*/) const override {}

  [[nodiscard]] void* create_event(int /*index*/, bool /*timing*/) const override { return new CpuEvent; }
  void destroy_event(int /*index*/, void* event) const noexcept override { delete static_cast<CpuEvent*>(event); }
  void record_event(int /*index*/, void* event, void* /*stream*/) const override {
    as_event(event).recorded_ms.store(now_ms(), std::memory_order_release);
  }
  [[nodiscard]] bool query_event(int /*index*/, void* /*event*/) const override { return true; }
  void synchronize_event(int /*index*/, void* /*event*/) const override {}
  void wait_event(int /*index*/, void* /*stream*/, void* /*event*/) const override {}
  [[nodiscard]] double elapsed_ms(int /*index*/, void* begin, void* end) const override {
    const double from = as_event(begin).recorded_ms.load(std::memory_order_acquire);
    const double to = as_event(end).recorded_ms.load(std::memory_order_acquire);
    WM_CHECK(from >= 0 && to >= 0, "elapsed_ms() of an event that was never recorded");
    return to - from;
  }

 private:
  template <class Body>
  static void for_chunks(std::size_t bytes, const Body& body) {
    const std::size_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
    parallel_for(static_cast<std::int64_t>(chunks), [&](std::int64_t chunk, int /*worker*/) {
      const std::size_t offset = static_cast<std::size_t>(chunk) * kChunkBytes;
      body(offset, std::min(kChunkBytes, bytes - offset));
    });
  }

  /// Bytes left when `promised` of those handed out are still to be touched.
  [[nodiscard]] static std::size_t room(std::size_t promised) {
    const HostMemory memory = host_memory();
    const std::size_t kept = safety_margin(memory.total) + promised;
    return memory.available - std::min(memory.available, kept);
  }

  [[nodiscard]] std::size_t untouched() const {
    std::size_t bytes = 0;
    for (const auto& [pointer, length] : segments_) bytes += untouched_bytes(pointer, length);
    return bytes;
  }

  mutable std::mutex mutex_;
  std::map<void*, std::size_t> segments_;
  std::size_t mapped_ = 0;
};

}  // namespace

Backend& backend_cpu() noexcept {
  static auto* const backend = new CpuBackend;  // outlives every allocator
  return *backend;
}

}  // namespace warpmeter::detail
