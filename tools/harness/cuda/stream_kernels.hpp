#pragma once

#include <cstddef>
#include <memory>

#include "kernels/runtime/context.hpp"
#include "tools/harness/detail/blocker.hpp"
#include "tools/harness/detail/clock_probe.hpp"

// What the timers put on a stream around the measured work. Apart from the timers, since nvcc does not take the result
// model's header.

namespace warpmeter::harness::detail {

/// A kernel of one thread that spins on a ticket in mapped host memory.
[[nodiscard]] std::unique_ptr<Blocker> make_cuda_blocker(StreamView stream);

/// Stamps of globaltimer and clock64 on every multiprocessor.
[[nodiscard]] std::unique_ptr<ClockProbe> make_cuda_clock_probe(const Context& context);

/// Reads `bytes` (a multiple of 16) on every multiprocessor, with ordinary loads, so that the L2 ends up holding them.
/// `sink`: a word of device memory. Enqueues only.
void read_through_cache(const void* data, std::size_t bytes, void* sink, StreamView stream);

}  // namespace warpmeter::harness::detail
