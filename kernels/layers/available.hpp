#pragma once

#include "kernels/runtime/device.hpp"

namespace warpmeter::layers {

/// True when this build has every operation of this room for that kind of device.
[[nodiscard]] bool available(DeviceKind kind) noexcept;

}  // namespace warpmeter::layers
