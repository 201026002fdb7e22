#pragma once

#include <vector>

namespace warpmeter::data_parallel {

/// What the ranks of a group waited at one place of each step, in ms.
struct Waiting {
  /// Communication that nothing hid: what the rank that came last waited, which waits for no other rank's work.
  std::vector<double> exposed_ms;
  /// How much more the rank waited that came first: for its neighbours, whatever the communication takes.
  std::vector<double> skew_ms;
};

/// `waited`: by rank, then by step; as many steps of each rank. The rank that waited least came last.
[[nodiscard]] Waiting split_waiting(const std::vector<std::vector<double>>& waited);

}  // namespace warpmeter::data_parallel
