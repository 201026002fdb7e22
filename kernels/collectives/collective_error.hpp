#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warpmeter::collectives {

/// Why a collective could not be finished.
enum class CollectiveFault : std::uint8_t {
  timeout,      ///< a rank did not come, or stopped in the middle
  peer_died,    ///< a rank's process ended, or its body failed with the given reason
  mismatch,     ///< the ranks called different collectives, or the same one with different arguments
  unsupported,  ///< this backend cannot do it (a CUDA buffer in host shared memory)
};

/// "timeout", "peer_died", "mismatch", "unsupported".
[[nodiscard]] std::string_view name(CollectiveFault fault) noexcept;

/// A collective that failed, and the ranks that are to blame. After a timeout, a death or a mismatch the communicator
/// is broken on every rank: waiting ranks throw the same fault with the same text, later calls throw it at once.
class CollectiveError : public std::runtime_error {
 public:
  CollectiveError(CollectiveFault fault, std::vector<int> ranks, const std::string& what)
      : std::runtime_error(what), fault_(fault), ranks_(std::move(ranks)) {}

  [[nodiscard]] CollectiveFault fault() const noexcept { return fault_; }
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }  ///< ascending

 private:
  CollectiveFault fault_;
  std::vector<int> ranks_;
};

/// Ranks did not arrive, or did not get on, within the communicator's timeout.
class CollectiveTimeout : public CollectiveError {
 public:
  CollectiveTimeout(std::vector<int> ranks, const std::string& what)
      : CollectiveError(CollectiveFault::timeout, std::move(ranks), what) {}
};

/// A rank's process has ended, or its body has failed.
class PeerDied : public CollectiveError {
 public:
  PeerDied(std::vector<int> ranks, const std::string& what)
      : CollectiveError(CollectiveFault::peer_died, std::move(ranks), what) {}
};

/// The ranks disagree on what is to be done.
class CollectiveMismatch : public CollectiveError {
 public:
  CollectiveMismatch(std::vector<int> ranks, const std::string& what)
      : CollectiveError(CollectiveFault::mismatch, std::move(ranks), what) {}
};

/// Throws the class that belongs to `fault`.
[[noreturn]] void throw_collective_error(CollectiveFault fault, std::vector<int> ranks, const std::string& what);

/// "rank 3", "ranks 1, 2 and 5".
[[nodiscard]] std::string name_ranks(const std::vector<int>& ranks);

}  // namespace warpmeter::collectives
