#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives::detail {

/// How a collective is cut up. The elements of every rank fall into blocks, one a rank; each thread has a part of every
/// block, and goes through it in chunks. All ranks come to the same plan from the same arguments.
class ShmPlan {
 public:
  struct Piece {
    std::int64_t begin = 0;  ///< element, from the begin of its block
    std::int64_t count = 0;
  };

  ShmPlan(const Collective& c, int world_size, int threads, std::size_t chunk_bytes)
      : element_bytes_(static_cast<std::int64_t>(size_of(c.input.dtype))) {
    const bool reduces = c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter;
    total_ = c.kind == CollectiveKind::all_gather ? c.output.count : c.input.count;
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        block_ = round_up((total_ + world_size - 1) / world_size);
        break;
      case CollectiveKind::broadcast:
        block_ = total_;  // the root's alone
        break;
      default:
        block_ = total_ / world_size;
    }
    const std::int64_t wanted = std::max<std::int64_t>(1, total_ * element_bytes_ / kThreadBytes);
    threads_ = static_cast<int>(std::min<std::int64_t>(threads, wanted));
    share_ = round_up((block_ + threads_ - 1) / threads_);
    const auto slot_elements = static_cast<std::int64_t>(chunk_bytes) / element_bytes_;
    chunk_ = (reduces ? slot_elements / world_size : slot_elements) / 16 * 16;
  }

  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] std::int64_t element_bytes() const { return element_bytes_; }
  /// Element at which a block begins in the whole array.
  [[nodiscard]] std::int64_t block_begin(int block) const { return std::min(block * block_, total_); }
  /// Bytes from one part of a slot to the next.
  [[nodiscard]] std::int64_t part_bytes() const { return chunk_ * element_bytes_; }

  /// Chunks of a thread: those of the longest block, which is the first.
  [[nodiscard]] std::int64_t chunks(int thread) const { return (share(thread, block_).count + chunk_ - 1) / chunk_; }
  /// A thread's part of a block.
  [[nodiscard]] Piece share_of(int block, int thread) const { return share(thread, length(block)); }
  /// A thread's chunk of a block. May be empty: the last blocks are shorter.
  [[nodiscard]] Piece chunk_of(int block, int thread, std::int64_t chunk) const {
    const Piece whole = share_of(block, thread);
    const std::int64_t skip = std::min(chunk * chunk_, whole.count);
    return {whole.begin + skip, std::min(chunk_, whole.count - skip)};
  }

 private:
  static constexpr std::int64_t kThreadBytes = std::int64_t{128} << 10;  // less than this is not worth a thread
  static constexpr std::int64_t kGrain = 64;  // elements: no two ranks write one cache line of an aligned array

  static std::int64_t round_up(std::int64_t count) { return (count + kGrain - 1) / kGrain * kGrain; }
  [[nodiscard]] std::int64_t length(int block) const { return std::min(block_, total_ - block_begin(block)); }
  [[nodiscard]] Piece share(int thread, std::int64_t length) const {
    const std::int64_t begin = std::min(thread * share_, length);
    return {begin, std::min(share_, length - begin)};
  }

  std::int64_t element_bytes_;
  std::int64_t total_ = 0, block_ = 0, share_ = 0, chunk_ = 0;
  int threads_ = 1;
};

}  // namespace warpmeter::collectives::detail
