#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/collectives/detail/shared_flag.hpp"
#include "kernels/collectives/detail/shm_segment.hpp"

namespace warpmeter::collectives::detail {

/// Whether this machine has as many threads that want to run as it has cores, without `own_threads` of them: no core is
/// better than another. False where the system does not say.
[[nodiscard]] bool cores_are_taken(int own_threads);

/// Waits for the other ranks' flags and finds out why they do not come. Several threads may wait at once.
class ShmWaiter {
 public:
  ShmWaiter(ShmSegment& segment, int rank);
  ~ShmWaiter();
  ShmWaiter(const ShmWaiter&) = delete;
  ShmWaiter& operator=(const ShmWaiter&) = delete;

  /// Returns when flag_of(r) has reached `count` for every other rank r. Throws the group's failure, after recording
  /// it when this rank is the first to see it. `what`: the collective in hand, for the message.
  template <class FlagOf>
  void wait_all(const FlagOf& flag_of, std::uint32_t count, const Collective& what) const {
    for (int r = 0; r < segment_.world_size(); ++r) {
      if (r == rank_) continue;
      SharedFlag& flag = flag_of(r);
      if (look(flag, flag_of(rank_), count)) continue;
      sleep(flag, flag_of(rank_), r, count, what, [&](int other) { return flag_of(other).reached(count); });
    }
  }
  /// `mine`: the flag of this rank that the others wait for in turn.
  void wait_one(SharedFlag& flag, SharedFlag& mine, int owner, std::uint32_t count, const Collective& what) const {
    if (look(flag, mine, count)) return;
    sleep(flag, mine, owner, count, what, [&](int other) { return other != owner || flag.reached(count); });
  }

  /// What follows waits at every chunk, or only a few times. No thread waits meanwhile.
  void expect_chunks(bool chunks) { chunks_ = chunks; }

  /// Puts the failure down for all and throws what stands there, which may be another one that came first.
  [[noreturn]] void fail(CollectiveFault fault, const std::vector<int>& ranks, const std::string& text) const;

 private:
  /// The quick part: spins, then yields. False: it takes longer.
  bool look(SharedFlag& flag, SharedFlag& mine, std::uint32_t count) const;
  /// Moves the calling thread to a core that no rank was last seen on. False where there is none, or no use in it;
  /// true without moving where it has moved a moment ago.
  bool change_core(SharedFlag& mine) const;
  /// Lets the others know which core this thread is on now.
  void note_core(SharedFlag& mine) const;
  /// The slow part. reached(r) tells who else is late, should time run out.
  void sleep(SharedFlag& flag, SharedFlag& mine, int owner, std::uint32_t count, const Collective& what,
             const std::function<bool(int)>& reached) const;
  [[nodiscard]] bool process_ended(int rank) const;

  ShmSegment& segment_;
  int rank_;
  bool chunks_ = false;
  mutable std::atomic<std::int64_t> changed_core_{0};  ///< when that was last thought of, on the steady clock
  mutable std::atomic<bool> moves_pay_{true};          ///< as was thought then
  mutable std::vector<std::atomic<int>> pidfds_;       ///< opened when a rank is first suspected; kNoFd before
};

}  // namespace warpmeter::collectives::detail
