#pragma once

#include "kernels/runtime/stream.hpp"

namespace warpmeter::transformer::detail {

/// The priority that tells a side lane's kernels from others in a recorded graph: one above the least, which every
/// other stream has. Recorded, they get the least and the others the greatest, so that the chain that everything waits
/// for has the multiprocessors first.
inline constexpr int kSidePriority = -1;

/// A stream of that priority; its owner destroys it. Throws DeviceError.
[[nodiscard]] StreamView create_side_stream(Device device);
void destroy_side_stream(StreamView stream) noexcept;

}  // namespace warpmeter::transformer::detail
