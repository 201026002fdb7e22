#pragma once

#include <cstdint>
#include <string>

#include "kernels/collectives/communicator.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::allreduce_bench {

/// A rank's part in the notes' example: three random whole numbers, summed over the ranks. Returns
/// "[6, 1, 2] [20, 14, 9]": its numbers before and after.
[[nodiscard]] std::string take_part_in_demo(collectives::Communicator& group, harness::Session& session,
                                            std::uint64_t seed);

/// Runs the demo that the command line asks for and prints it. Returns the exit status.
int run_demo(int argc, const char* const* argv);

}  // namespace warpmeter::allreduce_bench
