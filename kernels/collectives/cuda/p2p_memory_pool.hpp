#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/cuda/p2p_protocol.hpp"

namespace warpmeter::collectives::p2p {

/// Device memory of each rank that the others have mapped by CUDA IPC. Everything but free() is called by all ranks
/// together.
class SharedMemory {
 public:
  /// `control` is borrowed.
  SharedMemory(Communicator& control, Device device);
  /// Frees without asking the others: after close() nothing is left to free.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Memory on every rank, of this rank's size, 2 MiB aligned. Gives back on all ranks what has been freed before.
  /// Throws OutOfMemory on all ranks when one has not enough, CollectiveError where a GPU does not reach another.
  [[nodiscard]] char* allocate(std::size_t bytes);
  /// No rank's kernels use it any more when this rank's are done. Given back at the next allocate() or close().
  void free(char* base) noexcept;
  /// Unmaps and gives back all. No kernel of any rank runs.
  void close();

  /// Where `rank` sees [data, data + bytes), which is this rank's; 0 when it is not shared.
  [[nodiscard]] std::uint64_t seen_by(int rank, const void* data, std::size_t bytes) const noexcept;
  /// Where this rank sees the beginning of what `rank` got from the call that gave this rank `base`.
  [[nodiscard]] char* of_rank(int rank, const char* base) const;

 private:
  struct Segment {
    char* base = nullptr;
    std::size_t bytes = 0;
    std::array<char*, kMaxRanks> mapped = {};           ///< the other ranks' of the same call, here
    std::array<std::uint64_t, kMaxRanks> seen_at = {};  ///< base, in the others' address spaces
    bool freed = false;
  };

  void unmap(Segment& segment, int rank);

  Communicator& control_;
  Device device_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Segment> segments_;  ///< by the number of the call that made them
  std::uint64_t calls_ = 0;
};

}  // namespace warpmeter::collectives::p2p
