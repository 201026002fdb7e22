#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/harness/launch/worker.hpp"
#include "tools/harness/statistics.hpp"

namespace warpmeter::harness::launch {

/// Something that all ranks of a group do together, again and again.
struct GroupPhase {
  std::function<void()> run;                        ///< once, untimed, complete on return
  std::function<double(std::int64_t calls)> timed;  ///< so often, begun together: this rank's milliseconds
  std::int64_t least_warm_up = 0;                   ///< untimed calls without which a time would not be sound
};

/// Samples it by the session's settings. A sample is the slowest rank's. Rank 0 decides when there are enough and tells
/// the others, who get no samples. Every rank calls it. Throws what breaks the group.
[[nodiscard]] Samples sample_together(const RankAtWork& rank, const GroupPhase& phase);

/// A rank's number, from every rank, in their order.
[[nodiscard]] std::vector<double> gather(collectives::Communicator& control, double mine);
/// A rank's numbers, from every rank, in their order.
[[nodiscard]] std::vector<std::vector<double>> gather(collectives::Communicator& control,
                                                      const std::vector<double>& mine);

}  // namespace warpmeter::harness::launch
