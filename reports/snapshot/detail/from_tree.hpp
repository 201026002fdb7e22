#pragma once

#include "reports/snapshot/detail/data_tree.hpp"
#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot::detail {

/// The snapshot that a tree of values is. Takes the tree's texts. Throws TreeError: "device_traces[0][17]: 'addr' is
/// a str, not an int".
[[nodiscard]] Snapshot from_tree(DataTree& tree, Word root, const ReadLimits& limits);

}  // namespace warpmeter::reports::snapshot::detail
