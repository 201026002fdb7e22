#pragma once

#include <optional>
#include <string>

#include "kernels/collectives/backend.hpp"

namespace warpmeter::collectives {

/// Host memory through the MPI library: the processes that its launcher has started, all of them. The library combines
/// elements in an order of its own and rounds 16-bit elements at every step; the same bits on every rank.
[[nodiscard]] const Backend& mpi_backend();

/// What the launcher has told this process, through the library, which is started when it has to be. For the ranks to
/// find each other without more than the launcher.
struct MpiWorld {
  int rank = 0;
  int world_size = 1;
};
[[nodiscard]] MpiWorld mpi_world();
/// The text of rank 0 on every rank.
[[nodiscard]] std::string mpi_broadcast(const std::string& text);

}  // namespace warpmeter::collectives
