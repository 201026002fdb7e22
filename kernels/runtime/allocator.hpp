#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter {

namespace detail {
class Backend;
}

/// An allocation that does not fit. An expected outcome: the harness turns it into a row's status.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(std::size_t requested, std::size_t free, std::size_t limit);

  [[nodiscard]] std::size_t requested() const noexcept { return requested_; }  ///< bytes asked for
  [[nodiscard]] std::size_t free() const noexcept { return free_; }            ///< bytes that could still have been had
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }  ///< the memory limit, or the device's memory

 private:
  std::size_t requested_, free_, limit_;
};

/// Bytes by the three measures of PyTorch's allocator.
struct MemoryAmounts {
  std::size_t allocated = 0;  ///< in blocks handed out, after rounding
  std::size_t reserved = 0;   ///< in segments taken from the device
  std::size_t requested = 0;  ///< what callers asked for, before rounding
};

struct MemoryStats {
  MemoryAmounts current;
  MemoryAmounts peak;        ///< each measure's own maximum since reset_peak()
  std::size_t external = 0;  ///< held by libraries outside the allocator, as told by add_external()
  std::size_t harness = 0;   ///< held for measuring (cache flush); in no other figure
  std::uint64_t allocations = 0;
  std::uint64_t segment_allocations = 0;
  std::uint64_t retries = 0;  ///< allocations that succeeded after the cache was freed
  std::uint64_t ooms = 0;
};

/// What the event history records; names as in PyTorch's snapshots.
enum class MemoryAction : std::uint8_t { alloc, free_requested, free_completed, segment_alloc, segment_free, oom };
[[nodiscard]] std::string_view name(MemoryAction action) noexcept;

struct MemoryEvent {
  MemoryAction action;
  std::uintptr_t address = 0;   ///< for oom: 0
  std::size_t size = 0;         ///< rounded bytes; for oom: requested bytes
  std::size_t requested = 0;    ///< bytes before rounding
  std::size_t device_free = 0;  ///< for oom: bytes free on the device
  void* stream = nullptr;
  std::int64_t time_us = 0;   ///< microseconds since the Unix epoch
  std::uint32_t phase = 0;    ///< index into MemoryHistory::phases: the innermost open one
  std::string_view category;  ///< of the block; see CategoryScope
  std::vector<Frame> frames;  ///< innermost first; empty unless recorded
};

/// A named stretch of time ("FWD_STEP", "layer 3"); the first entry is the unnamed phase before any. Events are within
/// the phases whose begin_us <= time_us < end_us: beginnings and ends are given times that no event contradicts.
struct MemoryPhase {
  std::string name;
  std::int64_t begin_us = 0;
  std::int64_t end_us = 0;  ///< 0 while open
};

struct MemoryHistory {
  std::vector<MemoryEvent> events;  ///< oldest first
  std::vector<MemoryPhase> phases;
  std::uint64_t dropped = 0;  ///< events older than the history's capacity
};

/// One block of a segment. Blocks tile their segment in address order.
struct MemoryBlock {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;  ///< 0 when inactive
  enum class State : std::uint8_t { active_allocated, active_pending_free, inactive } state = State::inactive;
  std::string_view category;  ///< see CategoryScope; empty when inactive
  std::vector<Frame> frames;
};

struct MemorySegment {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  bool small_pool = false;
  void* stream = nullptr;
  std::vector<MemoryBlock> blocks;
};

/// Caching allocator with the rules of PyTorch's CUDA caching allocator, over CUDA memory or aligned host memory.
///
/// Rounding: requests to multiples of 512 B. Requests up to 1 MiB come from 2 MiB segments of the small pool; those
/// under 10 MiB from 20 MiB segments of the large pool; larger ones from segments of their own, rounded to 2 MiB. A
/// free block is chosen best fit, lowest address first, and split when at least 512 B (small) or more than 1 MiB
/// (large) would remain. Freed neighbours merge. A block serves again only the stream that it was allocated on.
///
/// A request that the device or the limit refuses gives every cached segment back and tries once more, then throws
/// OutOfMemory. Zero bytes give a null block that free() accepts. Thread-safe.
/// Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (constants and policy).
class CachingAllocator {
 public:
  explicit CachingAllocator(Device device);
  CachingAllocator(Device device, detail::Backend& backend);  ///< over another backend than the device's: for tests
  ~CachingAllocator();  ///< gives all segments back; blocks still out are reported on stderr in debug builds
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  [[nodiscard]] Device device() const noexcept;

  /// At least `bytes` bytes, aligned to 512 (CUDA) or 4096 (segments on the host). Throws OutOfMemory.
  [[nodiscard]] void* allocate(std::size_t bytes, StreamView stream);
  /// Gives a block back; it may be reused at once by work on its own stream. Never throws.
  void free(void* pointer) noexcept;
  /// `stream` also uses the block: after free() it stays pending until that stream's work so far is done.
  void record_stream(void* pointer, StreamView stream);

  /// Gives segments without live blocks back to the device.
  void empty_cache();

  /// Bounds reserved bytes; 0 means the device's memory alone. Below what is reserved now, the cache is freed first.
  void set_memory_limit(std::size_t bytes);
  [[nodiscard]] std::size_t memory_limit() const noexcept;
  /// Bytes to be had in one piece, in steps of 2 MiB: room under the limit and on the device, cached blocks aside.
  [[nodiscard]] std::size_t available_bytes() const;

  [[nodiscard]] MemoryStats stats() const;
  void reset_peak();

  /// Bytes that a library took behind the allocator's back (positive) or gave back (negative).
  void add_external(std::ptrdiff_t bytes);

  /// Memory for measuring (flush buffers): straight from the device, counted in MemoryStats::harness only.
  [[nodiscard]] void* allocate_for_harness(std::size_t bytes);
  void free_for_harness(void* pointer, std::size_t bytes) noexcept;

  /// Starts recording events, at most `capacity` (older ones are dropped), with or without stack frames.
  void start_history(std::size_t capacity, bool with_frames);
  void stop_history();
  [[nodiscard]] MemoryHistory history() const;
  [[nodiscard]] std::vector<MemorySegment> segments() const;  ///< by address
  void begin_phase(std::string_view name);                    ///< ends the open ones
  void end_phase();                                           ///< ends the open ones
  void push_phase(std::string_view name);                     ///< within the open one
  void pop_phase();                                           ///< ends the innermost one

  /// Called with the mutex free when allocate() is about to throw OutOfMemory, while everything is still where it was:
  /// the moment to look at segments() and history(). One at a time; an empty function ends it.
  void on_out_of_memory(std::function<void()> observer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A phase of an allocator's history for the length of a scope, within the open one.
class PhaseScope {
 public:
  PhaseScope(CachingAllocator& allocator, std::string_view name) : allocator_(allocator) {
    allocator_.push_phase(name);
  }
  ~PhaseScope() { allocator_.pop_phase(); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  CachingAllocator& allocator_;
};

}  // namespace warpmeter
