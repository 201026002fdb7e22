#include "kernels/runtime/detail/allocator_core.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "kernels/runtime/check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace warpmeter::detail {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMinBlockSize = 512;         // every block is a multiple
constexpr std::size_t kSmallSize = 1 * kMiB;       // the largest request of the small pool
constexpr std::size_t kSmallBuffer = 2 * kMiB;     // its segments
constexpr std::size_t kLargeBuffer = 20 * kMiB;    // segments of the large pool for requests ...
constexpr std::size_t kMinLargeAlloc = 10 * kMiB;  // ... under this; others get a segment of their own ...
constexpr std::size_t kRoundLarge = 2 * kMiB;      // ... in these steps
constexpr std::size_t kHarnessStep = 4096;
constexpr std::size_t kLargestRequest = std::numeric_limits<std::size_t>::max() / 4;

std::size_t round_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

std::size_t segment_bytes(std::size_t size) {
  if (size <= kSmallSize) return kSmallBuffer;
  return size < kMinLargeAlloc ? kLargeBuffer : round_up(size, kRoundLarge);
}

bool worth_splitting(std::size_t remaining, bool small_pool) {
  return small_pool ? remaining >= kMinBlockSize : remaining > kSmallSize;
}

// AddressSanitizer sees a segment as one mapping: it is told which bytes nobody owns. Not of huge segments, since the
// sanitizer's own notes take an eighth of what they are about.
constexpr std::size_t kLargestPoisoned = 64 * kMiB;

void poison([[maybe_unused]] const void* pointer, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(pointer, bytes);
#endif
}
void unpoison([[maybe_unused]] const void* pointer, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(pointer, bytes);
#endif
}

}  // namespace

bool AllocatorCore::PoolOrder::before(const PoolKey& a, const PoolKey& b) noexcept {
  if (a.stream != b.stream) return std::less<>()(a.stream, b.stream);
  if (a.size != b.size) return a.size < b.size;
  return std::less<>()(a.address, b.address);
}

AllocatorCore::AllocatorCore(Backend& backend, Device device) : backend_(backend), device_(device) {
  active_.reserve(1024);
}

AllocatorCore::~AllocatorCore() {
  try {
    wait_for_events();
  } catch (...) {  // the context is lost; the memory goes with it
  }
  for (auto& [stream, events] : pending_) {
    for (const PendingEvent& pending : events) spare_events_.push_back(pending.event);
  }
  for (void* const event : spare_events_) backend_.destroy_event(device_.index, event);
#ifndef __OPTIMIZE__
  if (!active_.empty()) {
    std::fprintf(stderr, "warpmeter: allocator of %s: %zu blocks (%zu bytes) never given back\n", name(device_).c_str(),
                 active_.size(), stats_.current.allocated);
  }
#endif
  for (Block* const head : segment_heads_) {
    std::size_t bytes = 0;
    for (const Block* block = head; block != nullptr; block = block->next) bytes += block->size;
    if (head->poisoned) unpoison(head->address, bytes);
    backend_.free(device_.index, head->address, bytes);
  }
}

// Blocks

AllocatorCore::Block* AllocatorCore::new_block() {
  if (spare_.empty()) return &storage_.emplace_back();
  Block* const block = spare_.back();
  spare_.pop_back();
  return block;
}

void AllocatorCore::retire_block(Block* block) noexcept {
  block->previous = block->next = nullptr;
  block->requested = 0;
  spare_.push_back(block);
}

void AllocatorCore::insert_free(Block* block) {
  Pool& pool = pool_of(*block);
  if (block->pool_node.empty()) {
    pool.insert(block);
  } else {
    pool.insert(std::move(block->pool_node));
  }
}

void AllocatorCore::remove_free(Block* block) noexcept {
  Pool& pool = pool_of(*block);
  block->pool_node = pool.extract(pool.find(block));
}

AllocatorCore::Block* AllocatorCore::find_free(std::size_t size, bool small_pool, void* stream) {
  Pool& pool = small_pool ? small_ : large_;
  const auto found = pool.lower_bound(PoolKey{stream, size, nullptr});
  if (found == pool.end() || (*found)->stream != stream) return nullptr;
  Block* const block = *found;
  block->pool_node = pool.extract(found);
  return block;
}

AllocatorCore::Block* AllocatorCore::allocate_segment(std::size_t size, bool small_pool, void* stream) {
  if (limit_ != 0 && (size > limit_ || stats_.current.reserved > limit_ - size)) return nullptr;
  void* const memory = backend_.allocate(device_.index, size);
  if (memory == nullptr) return nullptr;
  Block* const block = new_block();
  block->address = static_cast<char*>(memory);
  block->size = size;
  block->requested = 0;
  block->stream = stream;
  block->small_pool = small_pool;
  block->poisoned = device_.is_cpu() && size <= kLargestPoisoned;
  block->allocated = false;
  if (block->poisoned) poison(memory, size);
  segment_heads_.insert(block);
  ++stats_.segment_allocations;
  stats_.current.reserved += size;
  stats_.peak.reserved = std::max(stats_.peak.reserved, stats_.current.reserved);
  record(MemoryAction::segment_alloc, *block);
  return block;
}

/// Cuts `block` to `size`; the rest becomes a free block behind it.
void AllocatorCore::split(Block* block, std::size_t size) {
  Block* const rest = new_block();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->requested = 0;
  rest->stream = block->stream;
  rest->small_pool = block->small_pool;
  rest->poisoned = block->poisoned;
  rest->allocated = false;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  insert_free(rest);
}

/// `neighbour`, free and right behind `block`, becomes part of it. Neither is in a pool.
void AllocatorCore::merge(Block* block, Block* neighbour) noexcept {
  block->size += neighbour->size;
  block->next = neighbour->next;
  if (block->next != nullptr) block->next->previous = block;
  retire_block(neighbour);
}

void AllocatorCore::release_block(Block* block) {
  record(MemoryAction::free_completed, *block);
  if (block->poisoned) poison(block->address, block->size);
  block->requested = 0;
  block->frames.clear();
  if (Block* const next = block->next; next != nullptr && next->is_free()) {
    remove_free(next);
    merge(block, next);
  }
  if (Block* const previous = block->previous; previous != nullptr && previous->is_free()) {
    remove_free(previous);
    merge(previous, block);
    block = previous;
  }
  insert_free(block);
}

void AllocatorCore::record(MemoryAction action, const Block& block) {
  if (!recorder_.recording()) return;
  MemoryEvent event;
  event.action = action;
  event.address = reinterpret_cast<std::uintptr_t>(block.address);
  event.size = block.size;
  event.requested = block.requested;
  event.stream = block.stream;
  recorder_.record(std::move(event));
}

// Handing out and taking back

void AllocatorCore::add_allocated(std::size_t size, std::size_t requested) noexcept {
  MemoryAmounts& now = stats_.current;
  MemoryAmounts& peak = stats_.peak;
  now.allocated += size;
  now.requested += requested;
  peak.allocated = std::max(peak.allocated, now.allocated);
  peak.requested = std::max(peak.requested, now.requested);
}

void* AllocatorCore::allocate(std::size_t bytes, StreamView stream) {
  WM_CHECK(stream.device == device_, "allocator of " + name(device_) + ", stream of " + name(stream.device));
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!pending_.empty()) poll_events();
  if (bytes > kLargestRequest) refuse(bytes, stream.handle);

  const std::size_t size = round_up(bytes, kMinBlockSize);
  const bool small_pool = size <= kSmallSize;
  Block* block = find_free(size, small_pool, stream.handle);
  if (block == nullptr) block = allocate_segment(segment_bytes(size), small_pool, stream.handle);
  if (block == nullptr && !pending_.empty()) {
    wait_for_events();
    block = find_free(size, small_pool, stream.handle);
  }
  if (block == nullptr) {
    release_cached_segments();
    block = allocate_segment(segment_bytes(size), small_pool, stream.handle);
    if (block == nullptr) refuse(bytes, stream.handle);
    ++stats_.retries;
  }
  if (worth_splitting(block->size - size, small_pool)) split(block, size);

  block->allocated = true;
  block->requested = bytes;
  if (block->poisoned) unpoison(block->address, bytes);
  if (recorder_.with_frames()) block->frames = current_frames();
  if (block->active_node.empty()) {
    active_.emplace(block->address, block);
  } else {
    block->active_node.key() = block->address;
    active_.insert(std::move(block->active_node));
  }
  ++stats_.allocations;
  add_allocated(block->size, bytes);
  record(MemoryAction::alloc, *block);
  return block->address;
}

void AllocatorCore::free(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = active_.find(pointer);
  WM_CHECK(found != active_.end(), "free() of a pointer that is not an allocated block's");
  Block* const block = found->second;
  block->active_node = active_.extract(found);
  block->allocated = false;
  stats_.current.allocated -= block->size;
  stats_.current.requested -= block->requested;
  record(MemoryAction::free_requested, *block);

  for (void* const stream : block->other_streams) {
    void* event = nullptr;
    try {
      if (spare_events_.empty()) spare_events_.push_back(backend_.create_event(device_.index, false));
      event = spare_events_.back();
      backend_.record_event(device_.index, event, stream);
    } catch (const DeviceError&) {
      continue;  // the context is lost: nothing will run on that stream any more
    }
    spare_events_.pop_back();
    pending_[stream].push_back({event, block});
    ++block->pending_events;
  }
  block->other_streams.clear();
  if (block->pending_events == 0) release_block(block);
}

void AllocatorCore::record_stream(void* pointer, StreamView stream) {
  if (pointer == nullptr) return;
  WM_CHECK(stream.device == device_, "allocator of " + name(device_) + ", stream of " + name(stream.device));
  const std::lock_guard lock(mutex_);
  const auto found = active_.find(pointer);
  WM_CHECK(found != active_.end(), "record_stream() of a pointer that is not an allocated block's");
  Block* const block = found->second;
  std::vector<void*>& others = block->other_streams;
  if (stream.handle == block->stream) return;
  if (std::find(others.begin(), others.end(), stream.handle) == others.end()) others.push_back(stream.handle);
}

// Events of other streams

void AllocatorCore::poll_events() {
  for (auto queue = pending_.begin(); queue != pending_.end();) {
    auto& events = queue->second;
    // One stream's events complete in order.
    while (!events.empty() && backend_.query_event(device_.index, events.front().event)) {
      const PendingEvent done = events.front();
      events.pop_front();
      spare_events_.push_back(done.event);
      if (--done.block->pending_events == 0) release_block(done.block);
    }
    queue = events.empty() ? pending_.erase(queue) : std::next(queue);
  }
}

void AllocatorCore::wait_for_events() {
  for (const auto& [stream, events] : pending_) backend_.synchronize_event(device_.index, events.back().event);
  poll_events();
}

// The cache

void AllocatorCore::release_cached_segments() {
  for (Pool* const pool : {&large_, &small_}) {
    for (auto position = pool->begin(); position != pool->end();) {
      const auto next = std::next(position);
      Block* const block = *position;
      if (block->previous == nullptr && block->next == nullptr) {
        block->pool_node = pool->extract(position);
        record(MemoryAction::segment_free, *block);
        if (block->poisoned) unpoison(block->address, block->size);
        backend_.free(device_.index, block->address, block->size);
        stats_.current.reserved -= block->size;
        segment_heads_.erase(block);
        retire_block(block);
      }
      position = next;
    }
  }
}

void AllocatorCore::empty_cache() {
  const std::lock_guard lock(mutex_);
  wait_for_events();
  release_cached_segments();
}

void AllocatorCore::set_memory_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (limit_ != 0 && stats_.current.reserved > limit_) {
    wait_for_events();
    release_cached_segments();
  }
}

std::size_t AllocatorCore::memory_limit() const noexcept {
  const std::lock_guard lock(mutex_);
  return limit_;
}

std::size_t AllocatorCore::room() const {
  std::size_t bytes = backend_.free_memory(device_.index);
  if (limit_ != 0) bytes = std::min(bytes, limit_ - std::min(limit_, stats_.current.reserved));
  return bytes / kRoundLarge * kRoundLarge;  // what a request would be rounded up to must fit
}

std::size_t AllocatorCore::available_bytes() const {
  const std::lock_guard lock(mutex_);
  return room();
}

void AllocatorCore::refuse(std::size_t requested, void* stream) {
  ++stats_.ooms;
  const std::size_t total = backend_.total_memory(device_.index);
  if (recorder_.recording()) {
    MemoryEvent event;
    event.action = MemoryAction::oom;
    event.size = event.requested = requested;
    event.device_free = backend_.free_memory(device_.index);
    event.stream = stream;
    recorder_.record(std::move(event));
  }
  throw OutOfMemory(requested, room(), limit_ == 0 ? total : std::min(limit_, total));
}

// Figures and history

MemoryStats AllocatorCore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void AllocatorCore::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.current;
}

void AllocatorCore::add_external(std::ptrdiff_t bytes) {
  const std::lock_guard lock(mutex_);
  WM_CHECK(bytes >= 0 || static_cast<std::size_t>(-bytes) <= stats_.external, "more given back than was taken");
  stats_.external += static_cast<std::size_t>(bytes);
}

void* AllocatorCore::allocate_for_harness(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (bytes > kLargestRequest) refuse(bytes, nullptr);
  const std::size_t size = round_up(bytes, kHarnessStep);
  void* memory = backend_.allocate(device_.index, size);
  if (memory == nullptr) {
    wait_for_events();
    release_cached_segments();
    memory = backend_.allocate(device_.index, size);
    if (memory == nullptr) refuse(bytes, nullptr);
  }
  stats_.harness += bytes;
  return memory;
}

void AllocatorCore::free_for_harness(void* pointer, std::size_t bytes) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  backend_.free(device_.index, pointer, round_up(bytes, kHarnessStep));
  stats_.harness -= bytes;
}

void AllocatorCore::start_history(std::size_t capacity, bool with_frames) {
  const std::lock_guard lock(mutex_);
  recorder_.start(capacity, with_frames);
}

void AllocatorCore::stop_history() {
  const std::lock_guard lock(mutex_);
  recorder_.stop();
}

MemoryHistory AllocatorCore::history() const {
  const std::lock_guard lock(mutex_);
  return recorder_.history();
}

void AllocatorCore::begin_phase(std::string_view phase) {
  const std::lock_guard lock(mutex_);
  recorder_.begin_phase(phase);
}

void AllocatorCore::end_phase() {
  const std::lock_guard lock(mutex_);
  recorder_.end_phase();
}

std::vector<MemorySegment> AllocatorCore::segments() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemorySegment> segments;
  segments.reserve(segment_heads_.size());
  for (const Block* const head : segment_heads_) {
    MemorySegment& segment = segments.emplace_back();
    segment.address = reinterpret_cast<std::uintptr_t>(head->address);
    segment.small_pool = head->small_pool;
    segment.stream = head->stream;
    for (const Block* block = head; block != nullptr; block = block->next) {
      segment.size += block->size;
      MemoryBlock& entry = segment.blocks.emplace_back();
      entry.address = reinterpret_cast<std::uintptr_t>(block->address);
      entry.size = block->size;
      entry.requested = block->requested;
      entry.state = block->allocated             ? MemoryBlock::State::active_allocated
                    : block->pending_events != 0 ? MemoryBlock::State::active_pending_free
                                                 : MemoryBlock::State::inactive;
      entry.frames = block->frames;
    }
  }
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return segments;
}

}  // namespace warpmeter::detail
