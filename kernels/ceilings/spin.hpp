#pragma once

#include <cstdint>

#include "kernels/runtime/stream.hpp"

namespace warpmeter::ceilings {

/// Work of a known length, for showing that a timer reports it: keeps one thread busy for `duration_ns`.
/// CUDA: a kernel of one thread that watches globaltimer, in the stream's order; returns at once. CPU: watches the
/// steady clock and returns when the time is over.
void spin_for(std::int64_t duration_ns, StreamView stream);

}  // namespace warpmeter::ceilings
