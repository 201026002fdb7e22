#pragma once

#include <span>
#include <string_view>

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// Every implementation of this build for a kind of device, in the order that tables show them.
[[nodiscard]] std::span<const Implementation* const> implementations(DeviceKind kind);

/// nullptr when this build has none of that name for that kind of device.
[[nodiscard]] const Implementation* find_implementation(DeviceKind kind, std::string_view name);

/// True for any name that some build of Warpmeter has: what is known but not here gives unsupported rows.
[[nodiscard]] bool known_implementation(std::string_view name);
[[nodiscard]] std::span<const std::string_view> known_implementation_names();

}  // namespace warpmeter::attention
