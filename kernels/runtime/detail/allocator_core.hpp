#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/detail/backend.hpp"
#include "kernels/runtime/detail/memory_recorder.hpp"

namespace warpmeter::detail {

/// CachingAllocator over any backend (tests give it one that refuses memory or keeps events pending).
///
/// A segment is a doubly linked list of blocks in address order. Free blocks also stand in their pool's ordered set;
/// blocks handed out in a table by address. Both keep their nodes inside the block between uses, so handing out a
/// cached block and taking it back allocates nothing.
class AllocatorCore {
 public:
  AllocatorCore(Backend& backend, Device device);
  ~AllocatorCore();
  AllocatorCore(const AllocatorCore&) = delete;
  AllocatorCore& operator=(const AllocatorCore&) = delete;

  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] void* allocate(std::size_t bytes, StreamView stream);
  void free(void* pointer) noexcept;
  void record_stream(void* pointer, StreamView stream);
  void empty_cache();
  void set_memory_limit(std::size_t bytes);
  [[nodiscard]] std::size_t memory_limit() const noexcept;
  [[nodiscard]] std::size_t available_bytes() const;
  [[nodiscard]] MemoryStats stats() const;
  void reset_peak();
  void add_external(std::ptrdiff_t bytes);
  [[nodiscard]] void* allocate_for_harness(std::size_t bytes);
  void free_for_harness(void* pointer, std::size_t bytes) noexcept;
  void start_history(std::size_t capacity, bool with_frames);
  void stop_history();
  [[nodiscard]] MemoryHistory history() const;
  [[nodiscard]] std::vector<MemorySegment> segments() const;
  void begin_phase(std::string_view name);
  void end_phase();

 private:
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
    [[nodiscard]] static bool before(const PoolKey& a, const PoolKey& b) noexcept;
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
    Pool::node_type pool_node;           ///< while not in a pool
    ActiveTable::node_type active_node;  ///< while not in the table
    [[nodiscard]] bool is_free() const noexcept { return !allocated && pending_events == 0; }
  };
  struct PendingEvent {
    void* event;
    Block* block;
  };

  void add_allocated(std::size_t size, std::size_t requested) noexcept;

  [[nodiscard]] Pool& pool_of(const Block& block) noexcept { return block.small_pool ? small_ : large_; }
  [[nodiscard]] Block* new_block();
  void retire_block(Block* block) noexcept;
  void insert_free(Block* block);
  void remove_free(Block* block) noexcept;

  [[nodiscard]] Block* find_free(std::size_t size, bool small_pool, void* stream);
  [[nodiscard]] Block* allocate_segment(std::size_t size, bool small_pool, void* stream);
  void split(Block* block, std::size_t size);
  void release_block(Block* block);  ///< to the pool, merged with its neighbours
  void merge(Block* block, Block* neighbour) noexcept;
  void record(MemoryAction action, const Block& block);

  void poll_events();
  void wait_for_events();
  void release_cached_segments();
  [[nodiscard]] std::size_t room() const;  ///< available_bytes() with the lock held
  [[noreturn]] void refuse(std::size_t requested, void* stream);

  Backend& backend_;
  const Device device_;
  mutable std::mutex mutex_;
  std::deque<Block> storage_;
  std::vector<Block*> spare_;
  Pool small_, large_;
  ActiveTable active_;
  std::set<Block*> segment_heads_;  ///< each segment's first block, which stays the first through splits and merges
  std::map<void*, std::deque<PendingEvent>> pending_;  ///< by stream, oldest first
  std::vector<void*> spare_events_;
  MemoryStats stats_;
  std::size_t limit_ = 0;
  MemoryRecorder recorder_;
};

}  // namespace warpmeter::detail
