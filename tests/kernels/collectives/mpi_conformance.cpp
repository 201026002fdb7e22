// Started by mpirun: every rank checks its part of the MPI backend. Exits with 0 when all is well.
#include <cstdio>
#include <exception>

#include "kernels/collectives/mpi.hpp"
#include "kernels/runtime/check.hpp"
#include "tests/kernels/collectives/conformance.hpp"
#include "tests/kernels/collectives/ranks.hpp"

using namespace warpmeter;
using namespace warpmeter::collectives;

namespace {

void check_everything() {
  const MpiWorld world = mpi_world();
  ranks::require(mpi_broadcast(world.rank == 0 ? "an address" : "") == "an address", "the text of rank 0");

  RankContext context;
  context.rank = world.rank;
  context.world_size = world.world_size;
  conformance::make_data();
  {
    const auto group = mpi_backend().create(context);
    ranks::require(group->backend() == "mpi" && group->rank() == world.rank, "a group");
    conformance::Rank(*group, {false, world.world_size}).everything({0, 1, 7, 1000});
    conformance::Rank(*group, {false, world.world_size}, 1).everything({20011});
    conformance::Rank(*group).asynchronous();
  }
  // A group after another one, and one that cannot be.
  const auto again = mpi_backend().create(context);
  again->barrier();
  context.world_size += 1;
  bool refused = false;
  try {
    (void)mpi_backend().create(context);
  } catch (const DeviceError&) {
    refused = true;
  }
  ranks::require(refused, "a group of another size than the launcher's");
}

}  // namespace

int main() {
  try {
    check_everything();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
