#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

/// What the ranks of a shared segment agree on before they start.
struct ShmOptions {
  int world_size = 1;  ///< 1 .. 64
  /// Threads of a rank that move data, the caller's among them. 0: the cores divided by the ranks, at least 1.
  int threads = 0;
  /// That all ranks together may be on. 0: those of the process that makes the segment.
  int cores = 0;
  /// Longest that a rank waits for another one without seeing it get on. At most 24 days.
  double timeout_s = 30;
  /// What a rank can get from Communicator::allocate() in all. Address space only until it is allocated.
  std::size_t heap_bytes = std::size_t{4} << 30;
  /// Bytes that a rank puts forward at once on the staged way, a thread. 0: by the number of ranks and threads.
  std::size_t chunk_bytes = 0;
};

namespace detail {
class ShmSegment;
}

/// The memory that the ranks of one host share: made by one process, inherited by fork() or opened by path.
///
/// It is an anonymous file in memory (memfd): it has no name in /dev/shm, so nothing is left behind whatever ends the
/// processes, a SIGKILL of all of them included, and the size of /dev/shm (64 MiB in many containers) is no limit.
/// Pages are taken when they are first used. Copies are handles to the same segment.
class ShmWorld {
 public:
  /// Throws DeviceError where the system refuses; WM_CHECKs the options.
  explicit ShmWorld(const ShmOptions& options);
  /// That of another process of this user and host, by its path(). Throws DeviceError.
  [[nodiscard]] static ShmWorld open(const std::string& path);
  /// "/proc/123/fd/4": good while this process has the segment.
  [[nodiscard]] std::string path() const;

  [[nodiscard]] int world_size() const noexcept;
  [[nodiscard]] int threads() const noexcept;  ///< as decided

  /// Makes the calling process rank `rank` and waits until all ranks have come. Once a rank and process.
  /// Throws CollectiveTimeout with the missing ranks, PeerDied.
  [[nodiscard]] std::unique_ptr<Communicator> join(int rank) const;

  /// Tells every rank that `rank` has failed and why: those that wait for it throw PeerDied. The first caller's words
  /// stay. For the process that looks after the ranks, and for a rank on its way out.
  void report_failure(int rank, const std::string& reason) const;
  /// What `rank` is in the middle of ("all_reduce sum of 4 fp32 (16 bytes)"), or empty.
  [[nodiscard]] std::string activity(int rank) const;

 private:
  explicit ShmWorld(std::shared_ptr<detail::ShmSegment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<detail::ShmSegment> segment_;
};

/// The entry of the table of backends. Rank 0 makes the segment, the others open it.
[[nodiscard]] const Backend& shm_backend();

// The `shm` backend, host memory only. With n ranks and S bytes a rank, chosen by size and by where the buffers lie:
//
// - One shot, up to 8 KiB: every rank leaves its input in the segment, and once all have, takes what it wants from
//   all of them. One meeting. Each rank reads n S.
// - Direct, where every buffer that another rank must reach comes from Communicator::allocate(): a rank owns one n-th
//   of the elements (a block), reads that block of every rank's input and writes the result into every rank's output:
//   reduce-scatter and all-gather in one pass. Two meetings.
//   Traffic of a rank: all_reduce S read + S written; reduce_scatter S + S/n; all_gather S + S; broadcast S + S.
//   In place an all_reduce moves 2 n S bytes in all. Out of place the processor would read a line before it writes one,
//   n S more: where the arrays leave the cache, results are written past it instead.
// - Staged, for buffers of any memory: in chunks that stay in the cache, a rank copies its input but for its own block
//   to a slot, reduces its block of all slots into its output and its slot, copies the others' results out. A rank runs
//   one chunk ahead, and as many as eight while another one does not get on; it puts the next chunk into the first slot
//   that is free, so that few are in use while all keep up.
//   Traffic of a rank, beside the direct way's: all_reduce 2 (n-1)/n S written to and read from the slots, in the
//   cache.
//
// Every element of a result is computed once, in rank order, and copied (one shot: everywhere alike), so all ranks have
// the same bits. Each thread of a rank does the same with a part of every block of its own.
//
// Waiting: a spin of some 200 us where every thread can have a core, hardly any and a few sched_yields where not; then
// a futex, from which a rank looks every 20 ms for peers that have died (by pidfd) and for the time.

}  // namespace warpmeter::collectives
