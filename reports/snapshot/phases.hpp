#pragma once

#include <cstdint>
#include <vector>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// One stretch that annotations name, in events: [begin, end) of the device's trace.
struct Phase {
  TextId name = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::int64_t begin_us = 0;
  std::int64_t end_us = 0;
  std::uint32_t depth = 0;  ///< within how many others it lies
};

/// A device's phases in order of their beginning. An event belongs to a phase from its START's time on and before its
/// END's; one without an END lasts to the end, an END without a START is left out.
[[nodiscard]] std::vector<Phase> phases_of(const Snapshot& snapshot, std::size_t device);

}  // namespace warpmeter::reports::snapshot
