#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/collectives/detail/shared_flag.hpp"
#include "kernels/collectives/shm.hpp"

namespace warpmeter::collectives::detail {

constexpr std::size_t kOneShotBytes = 8192;
constexpr int kMaxRanks = 64;
/// Chunks that a rank's thread may be ahead of the slowest rank. One that has to wait for the core then finds work for
/// all of them when it gets it, instead of for two.
constexpr int kSlots = 8;
constexpr std::int64_t kNotShared = -1;

/// What a rank says about the collective that it has come for.
struct CallRecord {
  CollectiveKind kind;
  ReduceOp op;
  DType dtype;
  std::int32_t root;
  std::int64_t input_count, output_count;
  std::int64_t input_offset, output_offset;  ///< in the segment, or kNotShared
};

enum class RankState : std::uint32_t { absent, joined, left };

/// A rank's control words. `calls` and the one-shot area have two sides, used in turn: a rank that writes the side of
/// call i knows that all have come for call i - 1, so have done with call i - 2, the last one to use it.
struct RankControl {
  SharedFlag arrived;  ///< calls that the rank has come for
  alignas(128) std::atomic<std::uint32_t> state{0};
  std::atomic<std::int32_t> pid{0};
  std::atomic<std::uint32_t> busy{0};  ///< 1 + the side of `calls` in hand, 0 between calls
  CallRecord calls[2];
};

/// Progress of one rank's thread, in chunks since the beginning.
struct ChannelControl {
  SharedFlag written;  ///< a slot of it holds the chunk
  SharedFlag reduced;  ///< its block of the chunk is reduced
  SharedFlag taken;    ///< it needs nothing more of the others' slots with the chunk
  /// Of the chunk, modulo kSlots: the slot that it is in. Written before `written` tells of it.
  std::atomic<std::uint8_t> slot_of[kSlots] = {};
};

/// The first failure, written once.
struct FailureRecord {
  std::atomic<std::uint32_t> state{0};  ///< 0 none, 1 being written, 2 readable
  CollectiveFault fault;
  std::uint64_t ranks;  ///< a bit each
  char text[1000];
};

/// What those that open a segment must know of it. At kHeaderAt of the first page, behind the failure record.
struct SegmentHeader {
  std::uint64_t magic;
  std::int32_t world_size, threads;
  double timeout_s;
  std::uint64_t chunk_bytes, heap_bytes;
  bool crowded;
};
constexpr std::size_t kHeaderAt = 2048;
static_assert(sizeof(FailureRecord) <= kHeaderAt);

/// Cores that the ranks of `control` may be on, all together: a launcher may have bound each to some of its own. Every
/// rank calls it.
[[nodiscard]] int cores_of_all(Communicator& control);

/// The mapped memory and where its parts are. Offsets are from the segment's begin, equal in every process.
class ShmSegment {
 public:
  explicit ShmSegment(const ShmOptions& options);
  explicit ShmSegment(const std::string& path);  ///< opens another process's
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  [[nodiscard]] int threads() const noexcept { return threads_; }
  [[nodiscard]] std::string path() const;
  [[nodiscard]] double timeout_s() const noexcept { return timeout_s_; }
  [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] std::size_t heap_bytes() const noexcept { return heap_bytes_; }
  [[nodiscard]] bool crowded() const noexcept { return crowded_; }  ///< more threads than cores

  [[nodiscard]] RankControl& control(int rank) const noexcept;
  [[nodiscard]] ChannelControl& channel(int thread, int rank) const noexcept;
  [[nodiscard]] char* one_shot(int rank, unsigned side) const noexcept;
  /// One of the kSlots of a rank's thread: chunk_bytes().
  [[nodiscard]] char* slot(int thread, int rank, int slot) const noexcept;

  /// Where [data, data + bytes) is in the heaps, or kNotShared.
  [[nodiscard]] std::int64_t heap_offset(const void* data, std::size_t bytes) const noexcept;
  [[nodiscard]] char* at(std::int64_t offset) const noexcept { return base_ + offset; }

  /// From the heap of `rank`, which must be the caller's. Takes the pages at once. Throws OutOfMemory.
  [[nodiscard]] char* allocate(int rank, std::size_t bytes);
  void free(char* data) noexcept;

  /// Keeps the first failure; later ones are dropped.
  void fail(CollectiveFault fault, const std::vector<int>& ranks, const std::string& text) noexcept;
  [[nodiscard]] bool failed() const noexcept { return failure().state.load(std::memory_order_acquire) == 2; }
  [[noreturn]] void throw_failure() const;  ///< needs failed()

 private:
  /// Where the parts are, from the numbers of ranks and threads and the sizes.
  void lay_out();
  void map();
  [[noreturn]] void refuse(const char* what) const;
  [[nodiscard]] FailureRecord& failure() const noexcept { return *reinterpret_cast<FailureRecord*>(base_); }

  int world_size_ = 0, threads_ = 0;
  double timeout_s_ = 0;
  std::size_t chunk_bytes_ = 0, heap_bytes_ = 0;
  bool crowded_ = false;

  int fd_ = -1;
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t controls_at_ = 0, channels_at_ = 0, one_shots_at_ = 0, slots_at_ = 0, heaps_at_ = 0;

  std::mutex heap_mutex_;                      ///< of this process: a heap is its rank's own
  std::map<std::size_t, std::size_t> blocks_;  ///< segment offset -> bytes, of live blocks
};

}  // namespace warpmeter::collectives::detail
