#pragma once

#include <cstdint>
#include <string>

#include "kernels/collectives/backend.hpp"
#include "reports/model.hpp"
#include "tools/allreduce_bench/call_watch.hpp"
#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::allreduce_bench {

/// What came of a row, the same on every rank but for the figures, which rank 0 has.
struct Outcome {
  reports::Status status = reports::Status::ok;
  std::string reason;
  reports::Object figures;
};

/// A rank at work: what it needs of its group.
struct RankAtWork {
  collectives::Communicator& group;    ///< of the backend that is measured
  collectives::Communicator& control;  ///< for everything else
  harness::Session& session;
  CallWatch& watch;
  bool one_host = true;  ///< the ranks' clocks are one
};

/// Measures one configuration together with the other ranks: checks a call, samples calls, times a run of them back to
/// back, checks once more. Every rank calls it with the same configuration.
///
/// A sample is one call on every rank, begun together; its time is the slowest rank's. Rank 0 decides when there are
/// enough and tells the others. What one rank cannot do (memory) ends the row on all of them. Throws what breaks the
/// group.
[[nodiscard]] Outcome measure(const RankAtWork& rank, const Configuration& configuration);

}  // namespace warpmeter::allreduce_bench
