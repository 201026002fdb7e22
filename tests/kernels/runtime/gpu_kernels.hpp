#pragma once

#include "kernels/runtime/stream.hpp"

namespace warpmeter::test {

/// Keeps `stream` busy for about `milliseconds`, then writes `value` to *target (device memory) when it is not null.
void launch_delayed_write(StreamView stream, int milliseconds, int* target, int value);

/// Adds `addend` to each of `count` integers.
void launch_add(StreamView stream, int* data, int count, int addend);

/// Writes to an address that nobody owns: the context is lost once it has run.
void launch_illegal_write(StreamView stream);

/// Launches with more threads than a block may have: refused at once, the context stays whole. Throws DeviceError.
void launch_refused(StreamView stream);

}  // namespace warpmeter::test
