#pragma once

#include <string>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

struct CheckResult {
  std::string problem;       ///< the first thing that is wrong, where; empty: nothing is
  std::size_t segments = 0;  ///< what was looked at
  std::size_t blocks = 0;
  std::size_t events = 0;
};

/// Holds a snapshot against what PyTorch's tools and viewer take for granted, in this order:
///
/// segments   blocks tile their segment in address order; a segment's totals are its blocks'; no two overlap; its
///            device has a trace; frames belong to blocks with a requested size
/// traces     replayed backwards from the segments: what a free gave back was live before it, what an alloc handed out
///            is live after it and was not before, all of it within segments that were there at the time; a segment
///            that came is there, one that went was not, and neither holds a live block then
/// categories where events have them, one is "unknown"
/// annotations each is a START or an END
///
/// An address is replayed only as far back as it is known: a trace that lost its oldest events is no mistake.
[[nodiscard]] CheckResult check(const Snapshot& snapshot);

}  // namespace warpmeter::reports::snapshot
