#pragma once

#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/launch/worker.hpp"

namespace warpmeter::allreduce_bench {

using harness::launch::Outcome;
using harness::launch::RankAtWork;

/// Measures one configuration together with the other ranks: checks a call, samples calls, times a run of them back to
/// back, checks once more. Every rank calls it with the same configuration.
///
/// A sample is one call on every rank, begun together; its time is the slowest rank's. Rank 0 decides when there are
/// enough and tells the others. What one rank cannot do (memory) ends the row on all of them. Throws what breaks the
/// group.
[[nodiscard]] Outcome measure(const RankAtWork& rank, const Configuration& configuration);

}  // namespace warpmeter::allreduce_bench
