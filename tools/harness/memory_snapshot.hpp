#pragma once

#include <string>

#include "kernels/runtime/allocator.hpp"
#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::harness {

/// An allocator's segments, history and phases as a snapshot of PyTorch's format.
///
/// Events carry the size after rounding, so that their sum is the allocator's `allocated`; the size asked for stands
/// beside it as `requested_size`. A block's category is the event's `category`, "unknown" where it has none. Streams
/// are numbered from 0 in the order that they occur. Phases are external annotations. Devices before the allocator's
/// have empty traces, since a trace's place is its device.
[[nodiscard]] reports::snapshot::Snapshot take_snapshot(const CachingAllocator& allocator);

}  // namespace warpmeter::harness
