// Over 600 lines: every function works on the same lists of blocks, whose structure stays private to this file.
#include "kernels/runtime/allocator.hpp"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/backend.hpp"
#include "kernels/runtime/detail/memory_recorder.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace warpmeter {
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

/// The blocks and what is known of them. Whoever calls its functions holds the mutex.
///
/// A segment is a doubly linked list of blocks in address order. Free blocks also stand in their pool's ordered set;
/// blocks handed out in a table by address. Both keep their nodes inside the block between uses, so handing out a
/// cached block and taking it back allocates nothing.
struct CachingAllocator::Impl {
  struct Block;
  struct PoolKey {
    void* stream;
    std::size_t size;
    char* address;
  };
  /// By (stream, size, address): the first block not before (stream, size, null) is the best fit.
  struct PoolOrder {
    using is_transparent = void;
    [[nodiscard]] static PoolKey key(const PoolKey& k) noexcept { return k; }
    [[nodiscard]] static PoolKey key(const Block* b) noexcept { return {b->stream, b->size, b->address}; }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept {
      return before(key(a), key(b));
    }
    [[nodiscard]] static bool before(const PoolKey& a, const PoolKey& b) noexcept {
      if (a.stream != b.stream) return std::less<>()(a.stream, b.stream);
      if (a.size != b.size) return a.size < b.size;
      return std::less<>()(a.address, b.address);
    }
  };
  using Pool = std::set<Block*, PoolOrder>;
  using ActiveTable = std::unordered_map<void*, Block*>;

  struct Block {
    char* address = nullptr;
    std::size_t size = 0;
    std::size_t requested = 0;
    void* stream = nullptr;
    bool small_pool = false;
    bool poisoned = false;      ///< AddressSanitizer is told what of its segment nobody owns
    bool allocated = false;     ///< handed out
    int pending_events = 0;     ///< given back, other streams not done yet
    Block* previous = nullptr;  ///< in the segment
    Block* next = nullptr;
    std::vector<void*> other_streams;  ///< record_stream()
    std::vector<Frame> frames;
    std::string_view category;
    Pool::node_type pool_node;           ///< while not in a pool
    ActiveTable::node_type active_node;  ///< while not in the table
    [[nodiscard]] bool is_free() const noexcept { return !allocated && pending_events == 0; }
  };
  struct PendingEvent {
    void* event;
    Block* block;
  };

  Impl(detail::Backend& backend_to_use, Device its_device) : backend(backend_to_use), device(its_device) {
    active.reserve(1024);
  }

  ~Impl() {
    try {
      wait_for_events();
    } catch (...) {  // the context is lost; the memory goes with it
    }
    for (auto& [stream, events] : pending) {
      for (const PendingEvent& waiting : events) spare_events.push_back(waiting.event);
    }
    for (void* const event : spare_events) backend.destroy_event(device.index, event);
#ifndef __OPTIMIZE__
    if (!active.empty()) {
      std::fprintf(stderr, "warpmeter: allocator of %s: %zu blocks (%zu bytes) never given back\n",
                   name(device).c_str(), active.size(), stats.current.allocated);
    }
#endif
    for (Block* const head : segment_heads) {
      std::size_t bytes = 0;
      for (const Block* block = head; block != nullptr; block = block->next) bytes += block->size;
      if (head->poisoned) unpoison(head->address, bytes);
      backend.free(device.index, head->address, bytes);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Blocks

  [[nodiscard]] Pool& pool_of(const Block& block) noexcept {
    return block.small_pool ? small : large;
  }

  [[nodiscard]] Block* new_block() {
    if (spare.empty()) return &storage.emplace_back();
    Block* const block = spare.back();
    spare.pop_back();
    return block;
  }

  void retire_block(Block* block) noexcept {
    block->previous = block->next = nullptr;
    block->requested = 0;
    spare.push_back(block);
  }

  void insert_free(Block* block) {
    Pool& pool = pool_of(*block);
    if (block->pool_node.empty()) {
      pool.insert(block);
    } else {
      pool.insert(std::move(block->pool_node));
    }
  }

  void remove_free(Block* block) noexcept {
    Pool& pool = pool_of(*block);
    block->pool_node = pool.extract(pool.find(block));
  }

  [[nodiscard]] Block* find_free(std::size_t size, bool small_pool, void* stream) {
    Pool& pool = small_pool ? small : large;
    const auto found = pool.lower_bound(PoolKey{stream, size, nullptr});
    if (found == pool.end() || (*found)->stream != stream) return nullptr;
    Block* const block = *found;
    block->pool_node = pool.extract(found);
    return block;
  }

  [[nodiscard]] Block* allocate_segment(std::size_t size, bool small_pool, void* stream) {
    if (limit != 0 && (size > limit || stats.current.reserved > limit - size)) return nullptr;
    void* const memory = backend.allocate(device.index, size);
    if (memory == nullptr) return nullptr;
    Block* const block = new_block();
    block->address = static_cast<char*>(memory);
    block->size = size;
    block->requested = 0;
    block->stream = stream;
    block->small_pool = small_pool;
    block->poisoned = device.is_cpu() && size <= kLargestPoisoned;
    block->allocated = false;
    if (block->poisoned) poison(memory, size);
    segment_heads.insert(block);
    ++stats.segment_allocations;
    stats.current.reserved += size;
    stats.peak.reserved = std::max(stats.peak.reserved, stats.current.reserved);
    record(MemoryAction::segment_alloc, *block);
    return block;
  }

  /// Cuts `block` to `size`; the rest becomes a free block behind it.
  void split(Block* block, std::size_t size) {
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
  void merge(Block* block, Block* neighbour) noexcept {
    block->size += neighbour->size;
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->previous = block;
    retire_block(neighbour);
  }

  void release_block(Block* block) {
    record(MemoryAction::free_completed, *block);
    if (block->poisoned) poison(block->address, block->size);
    block->requested = 0;
    block->frames.clear();
    block->category = {};
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

  void record(MemoryAction action, const Block& block) {
    if (!recorder.recording()) return;
    MemoryEvent event;
    event.action = action;
    event.address = reinterpret_cast<std::uintptr_t>(block.address);
    event.size = block.size;
    event.requested = block.requested;
    event.stream = block.stream;
    event.category = block.category;
    recorder.record(std::move(event));
  }

  // Handing out and taking back

  void check_device(StreamView stream) const {
    WM_CHECK(stream.device == device, "allocator of " + name(device) + ", stream of " + name(stream.device));
  }

  void add_allocated(std::size_t size, std::size_t requested) noexcept {
    MemoryAmounts& now = stats.current;
    MemoryAmounts& peak = stats.peak;
    now.allocated += size;
    now.requested += requested;
    peak.allocated = std::max(peak.allocated, now.allocated);
    peak.requested = std::max(peak.requested, now.requested);
  }

  /// A block of `bytes` > 0; throws OutOfMemory.
  [[nodiscard]] void* hand_out(std::size_t bytes, void* stream) {
    if (!pending.empty()) poll_events();
    if (bytes > kLargestRequest) refuse(bytes, stream);

    const std::size_t size = round_up(bytes, kMinBlockSize);
    const bool small_pool = size <= kSmallSize;
    Block* block = find_free(size, small_pool, stream);
    if (block == nullptr) block = allocate_segment(segment_bytes(size), small_pool, stream);
    if (block == nullptr && !pending.empty()) {
      wait_for_events();
      block = find_free(size, small_pool, stream);
    }
    if (block == nullptr) {
      release_cached_segments();
      block = allocate_segment(segment_bytes(size), small_pool, stream);
      if (block == nullptr) refuse(bytes, stream);
      ++stats.retries;
    }
    if (worth_splitting(block->size - size, small_pool)) split(block, size);

    block->allocated = true;
    block->requested = bytes;
    if (block->poisoned) unpoison(block->address, bytes);
    block->category = current_category();  // also of what is there before a recording starts
    if (recorder.with_frames()) block->frames = current_frames();
    if (block->active_node.empty()) {
      active.emplace(block->address, block);
    } else {
      block->active_node.key() = block->address;
      active.insert(std::move(block->active_node));
    }
    ++stats.allocations;
    add_allocated(block->size, bytes);
    record(MemoryAction::alloc, *block);
    return block->address;
  }

  void take_back(void* pointer) {
    const auto found = active.find(pointer);
    WM_CHECK(found != active.end(), "free() of a pointer that is not an allocated block's");
    Block* const block = found->second;
    block->active_node = active.extract(found);
    block->allocated = false;
    stats.current.allocated -= block->size;
    stats.current.requested -= block->requested;
    record(MemoryAction::free_requested, *block);

    for (void* const stream : block->other_streams) {
      void* event = nullptr;
      try {
        if (spare_events.empty()) spare_events.push_back(backend.create_event(device.index, false));
        event = spare_events.back();
        backend.record_event(device.index, event, stream);
      } catch (const DeviceError&) {
        continue;  // the context is lost: nothing will run on that stream any more
      }
      spare_events.pop_back();
      pending[stream].push_back({event, block});
      ++block->pending_events;
    }
    block->other_streams.clear();
    if (block->pending_events == 0) release_block(block);
  }

  // Events of other streams

  void poll_events() {
    for (auto queue = pending.begin(); queue != pending.end();) {
      auto& events = queue->second;
      // One stream's events complete in order.
      while (!events.empty() && backend.query_event(device.index, events.front().event)) {
        const PendingEvent done = events.front();
        events.pop_front();
        spare_events.push_back(done.event);
        if (--done.block->pending_events == 0) release_block(done.block);
      }
      queue = events.empty() ? pending.erase(queue) : std::next(queue);
    }
  }

  void wait_for_events() {
    for (const auto& [stream, events] : pending) backend.synchronize_event(device.index, events.back().event);
    poll_events();
  }

  // The cache

  void release_cached_segments() {
    for (Pool* const pool : {&large, &small}) {
      for (auto position = pool->begin(); position != pool->end();) {
        const auto next = std::next(position);
        Block* const block = *position;
        if (block->previous == nullptr && block->next == nullptr) {
          block->pool_node = pool->extract(position);
          record(MemoryAction::segment_free, *block);
          if (block->poisoned) unpoison(block->address, block->size);
          backend.free(device.index, block->address, block->size);
          stats.current.reserved -= block->size;
          segment_heads.erase(block);
          retire_block(block);
        }
        position = next;
      }
    }
  }

  /// available_bytes() with the mutex held.
  [[nodiscard]] std::size_t room() const {
    std::size_t bytes = backend.free_memory(device.index);
    if (limit != 0) bytes = std::min(bytes, limit - std::min(limit, stats.current.reserved));
    return bytes / kRoundLarge * kRoundLarge;  // what a request would be rounded up to must fit
  }

  [[noreturn]] void refuse(std::size_t requested, void* stream) {
    ++stats.ooms;
    const std::size_t total = backend.total_memory(device.index);
    if (recorder.recording()) {
      MemoryEvent event;
      event.action = MemoryAction::oom;
      event.size = event.requested = requested;
      event.device_free = backend.free_memory(device.index);
      event.stream = stream;
      recorder.record(std::move(event));
    }
    throw OutOfMemory(requested, room(), limit == 0 ? total : std::min(limit, total));
  }

  detail::Backend& backend;
  const Device device;
  mutable std::mutex mutex;
  std::deque<Block> storage;
  std::vector<Block*> spare;
  Pool small, large;
  ActiveTable active;
  std::set<Block*> segment_heads;  ///< each segment's first block, which stays the first through splits and merges
  std::map<void*, std::deque<PendingEvent>> pending;  ///< by stream, oldest first
  std::vector<void*> spare_events;
  MemoryStats stats;
  std::size_t limit = 0;
  detail::MemoryRecorder recorder;
  std::function<void()> out_of_memory_observer;
};

CachingAllocator::CachingAllocator(Device device) : CachingAllocator(device, detail::backend(device.kind)) {}
CachingAllocator::CachingAllocator(Device device, detail::Backend& backend)
    : impl_(std::make_unique<Impl>(backend, device)) {}
CachingAllocator::~CachingAllocator() = default;

Device CachingAllocator::device() const noexcept {
  return impl_->device;
}

void* CachingAllocator::allocate(std::size_t bytes, StreamView stream) {
  impl_->check_device(stream);
  if (bytes == 0) return nullptr;
  try {
    const std::lock_guard lock(impl_->mutex);
    return impl_->hand_out(bytes, stream.handle);
  } catch (const OutOfMemory&) {
    if (impl_->out_of_memory_observer) impl_->out_of_memory_observer();
    throw;
  }
}

void CachingAllocator::free(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->take_back(pointer);
}

void CachingAllocator::record_stream(void* pointer, StreamView stream) {
  if (pointer == nullptr) return;
  impl_->check_device(stream);
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->active.find(pointer);
  WM_CHECK(found != impl_->active.end(), "record_stream() of a pointer that is not an allocated block's");
  Impl::Block* const block = found->second;
  std::vector<void*>& others = block->other_streams;
  if (stream.handle == block->stream) return;
  if (std::find(others.begin(), others.end(), stream.handle) == others.end()) others.push_back(stream.handle);
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(impl_->mutex);
  impl_->wait_for_events();
  impl_->release_cached_segments();
}

void CachingAllocator::set_memory_limit(std::size_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->limit = bytes;
  if (impl_->limit != 0 && impl_->stats.current.reserved > impl_->limit) {
    impl_->wait_for_events();
    impl_->release_cached_segments();
  }
}

std::size_t CachingAllocator::memory_limit() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->limit;
}

std::size_t CachingAllocator::available_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->room();
}

// Figures and history

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(impl_->mutex);
  impl_->stats.peak = impl_->stats.current;
}

void CachingAllocator::add_external(std::ptrdiff_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  WM_CHECK(bytes >= 0 || static_cast<std::size_t>(-bytes) <= impl_->stats.external, "more given back than was taken");
  impl_->stats.external += static_cast<std::size_t>(bytes);
}

void* CachingAllocator::allocate_for_harness(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(impl_->mutex);
  if (bytes > kLargestRequest) impl_->refuse(bytes, nullptr);
  const std::size_t size = round_up(bytes, kHarnessStep);
  void* memory = impl_->backend.allocate(impl_->device.index, size);
  if (memory == nullptr) {
    impl_->wait_for_events();
    impl_->release_cached_segments();
    memory = impl_->backend.allocate(impl_->device.index, size);
    if (memory == nullptr) impl_->refuse(bytes, nullptr);
  }
  impl_->stats.harness += bytes;
  return memory;
}

void CachingAllocator::free_for_harness(void* pointer, std::size_t bytes) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->backend.free(impl_->device.index, pointer, round_up(bytes, kHarnessStep));
  impl_->stats.harness -= bytes;
}

void CachingAllocator::start_history(std::size_t capacity, bool with_frames) {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.start(capacity, with_frames);
}

void CachingAllocator::stop_history() {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.stop();
}

MemoryHistory CachingAllocator::history() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->recorder.history();
}

void CachingAllocator::begin_phase(std::string_view phase) {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.begin_phase(phase);
}

void CachingAllocator::end_phase() {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.end_phase();
}

void CachingAllocator::push_phase(std::string_view phase) {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.push_phase(phase);
}

void CachingAllocator::pop_phase() {
  const std::lock_guard lock(impl_->mutex);
  impl_->recorder.pop_phase();
}

void CachingAllocator::on_out_of_memory(std::function<void()> observer) {
  impl_->out_of_memory_observer = std::move(observer);
}

std::vector<MemorySegment> CachingAllocator::segments() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<MemorySegment> segments;
  segments.reserve(impl_->segment_heads.size());
  for (const Impl::Block* const head : impl_->segment_heads) {
    MemorySegment& segment = segments.emplace_back();
    segment.address = reinterpret_cast<std::uintptr_t>(head->address);
    segment.small_pool = head->small_pool;
    segment.stream = head->stream;
    for (const Impl::Block* block = head; block != nullptr; block = block->next) {
      segment.size += block->size;
      MemoryBlock& entry = segment.blocks.emplace_back();
      entry.address = reinterpret_cast<std::uintptr_t>(block->address);
      entry.size = block->size;
      entry.requested = block->requested;
      entry.state = block->allocated             ? MemoryBlock::State::active_allocated
                    : block->pending_events != 0 ? MemoryBlock::State::active_pending_free
                                                 : MemoryBlock::State::inactive;
      entry.category = block->category;
      entry.frames = block->frames;
    }
  }
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return segments;
}

}  // namespace warpmeter
