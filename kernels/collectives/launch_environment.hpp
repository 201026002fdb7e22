#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

namespace warpmeter::collectives {

/// What a launcher has told a process that is to be one rank of many.
struct LaunchEnvironment {
  std::string launcher;  ///< "Open MPI's mpirun", "srun", "torchrun or the like": for messages
  int rank = 0;
  int world_size = 1;
  bool by_mpi = false;  ///< the MPI library can tell more
  std::string host;     ///< where rank 0 is to be met; empty: not told
  int port = 0;         ///< 0: not told
};

/// A launcher has told too little, or nonsense: what() is one line that says what to do.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads the variables of Open MPI, MPICH, Slurm's srun and of torchrun and its like, in this order. nullopt: no
/// launcher has started this process. `variable` gives a variable's text or nullptr; `parent` is the name of the parent
/// process. `rendezvous`: "HOST:PORT" that the user names, or empty. Throws LaunchError: a rank without a number of
/// ranks, a number that is none, a rank outside, a parent that is a launcher and has told nothing, a rendezvous without
/// ranks.
[[nodiscard]] std::optional<LaunchEnvironment> read_launch_environment(
    const std::function<const char*(const char*)>& variable, const std::string& parent, const std::string& rendezvous);

/// Of this process.
[[nodiscard]] std::optional<LaunchEnvironment> launch_environment(const std::string& rendezvous);

}  // namespace warpmeter::collectives
