#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/shm.hpp"

namespace warpmeter::collectives {

struct LaunchOptions {
  ShmOptions shm;
  double timeout_s = 0;  ///< watchdog over the whole run: ranks that are not done by then are killed. 0: none
  double grace_s = 2;    ///< from the first rank's failure until the others are killed
};

/// How a rank ended.
struct RankExit {
  int exit_code = 0;   ///< 0 well; meaningless after a signal
  int signal = 0;      ///< that ended it, else 0
  std::string reason;  ///< empty when it ended well: what its body threw, "killed by signal 9 (Killed)", ...
};

struct LaunchReport {
  std::vector<RankExit> ranks;
  int first_failed = -1;  ///< the rank that took the others down, -1 when all ended well
  std::string reason;     ///< its reason, with its number: "rank 1: killed by signal 9 (Killed)"
  bool timed_out = false;
  [[nodiscard]] bool ok() const noexcept { return first_failed < 0; }
};

/// Starts one process a rank on this host by fork(), runs `body` in each with its communicator of the `shm` backend,
/// and waits for all. A rank fails by an exception, a signal or an exit of its own: the others are told, throw
/// PeerDied from the collective that they are in or come to, and after the grace are killed. No process and no shared
/// memory is left when this returns or throws, nor when the calling process is killed: the ranks die with it.
///
/// Call it before the process has other threads, an OpenMP region or a CUDA context: none of these lives through
/// fork(). `body` runs in the child; what it changes stays there, its output is flushed. A CollectiveError that
/// leaves `body` is the rank's reason, but never the first failure where another rank has its own.
/// Throws DeviceError when a process or the shared memory cannot be had.
LaunchReport launch_ranks(const LaunchOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace warpmeter::collectives
