#include "kernels/runtime/allocator.hpp"

#include <cstdio>

#include "kernels/runtime/detail/allocator_core.hpp"

namespace warpmeter {
namespace {

std::string mib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / 1048576.0);
  return text;
}

}  // namespace

OutOfMemory::OutOfMemory(std::size_t requested, std::size_t free, std::size_t limit)
    : std::runtime_error("out of memory: " + mib(requested) + " requested, " + mib(free) + " free of " + mib(limit)),
      requested_(requested),
      free_(free),
      limit_(limit) {}

std::string_view name(MemoryAction action) noexcept {
  switch (action) {
    case MemoryAction::alloc:
      return "alloc";
    case MemoryAction::free_requested:
      return "free_requested";
    case MemoryAction::free_completed:
      return "free_completed";
    case MemoryAction::segment_alloc:
      return "segment_alloc";
    case MemoryAction::segment_free:
      return "segment_free";
    case MemoryAction::oom:
      return "oom";
  }
  return "unknown";
}

struct CachingAllocator::Impl {
  explicit Impl(Device device) : core(detail::backend(device.kind), device) {}
  detail::AllocatorCore core;
};

CachingAllocator::CachingAllocator(Device device) : impl_(std::make_unique<Impl>(device)) {}
CachingAllocator::~CachingAllocator() = default;

Device CachingAllocator::device() const noexcept {
  return impl_->core.device();
}
void* CachingAllocator::allocate(std::size_t bytes, StreamView stream) {
  return impl_->core.allocate(bytes, stream);
}
void CachingAllocator::free(void* pointer) noexcept {
  impl_->core.free(pointer);
}
void CachingAllocator::record_stream(void* pointer, StreamView stream) {
  impl_->core.record_stream(pointer, stream);
}
void CachingAllocator::empty_cache() {
  impl_->core.empty_cache();
}
void CachingAllocator::set_memory_limit(std::size_t bytes) {
  impl_->core.set_memory_limit(bytes);
}
std::size_t CachingAllocator::memory_limit() const noexcept {
  return impl_->core.memory_limit();
}
std::size_t CachingAllocator::available_bytes() const {
  return impl_->core.available_bytes();
}
MemoryStats CachingAllocator::stats() const {
  return impl_->core.stats();
}
void CachingAllocator::reset_peak() {
  impl_->core.reset_peak();
}
void CachingAllocator::add_external(std::ptrdiff_t bytes) {
  impl_->core.add_external(bytes);
}
void* CachingAllocator::allocate_for_harness(std::size_t bytes) {
  return impl_->core.allocate_for_harness(bytes);
}
void CachingAllocator::free_for_harness(void* pointer, std::size_t bytes) noexcept {
  impl_->core.free_for_harness(pointer, bytes);
}
void CachingAllocator::start_history(std::size_t capacity, bool with_frames) {
  impl_->core.start_history(capacity, with_frames);
}
void CachingAllocator::stop_history() {
  impl_->core.stop_history();
}
MemoryHistory CachingAllocator::history() const {
  return impl_->core.history();
}
std::vector<MemorySegment> CachingAllocator::segments() const {
  return impl_->core.segments();
}
void CachingAllocator::begin_phase(std::string_view name) {
  impl_->core.begin_phase(name);
}
void CachingAllocator::end_phase() {
  impl_->core.end_phase();
}

}  // namespace warpmeter
