#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// One self-contained HTML page that asks nothing of the network: bytes over events or time, stacked by category, with
/// phases along the axis, the allocation under the pointer with its stack, zoom and pan, and tables of the peak beside.
void write_timeline_page(const Snapshot& snapshot, const std::string& title, std::ostream& out);

/// The same picture of the first device that has a trace, without the interaction. The axis goes up to `scale_to` bytes
/// at least, so that several pictures can be held side by side.
void write_timeline_svg(const Snapshot& snapshot, const std::string& title, std::ostream& out,
                        std::uint64_t scale_to = 0);

}  // namespace warpmeter::reports::snapshot
