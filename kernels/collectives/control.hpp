#pragma once

#include <string>
#include <vector>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

/// What every rank gives, in order of rank: byte strings of any length, which may differ. For a few KiB.
[[nodiscard]] std::vector<std::string> all_gather_bytes(Communicator& control, const std::string& mine);

/// The root's bytes, on every rank.
[[nodiscard]] std::string broadcast_bytes(Communicator& control, int root, const std::string& bytes);

}  // namespace warpmeter::collectives
