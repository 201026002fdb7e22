#pragma once

#include <cstdint>

/// What softmax_one_read on the CPU keeps: for the kernel's description, which knows no vectors, and for
/// cpu_softmax.hpp.
namespace warpmeter::primer::cpu_tools {

/// Numbers whose exponentials are taken relative to one maximum.
inline constexpr std::int64_t kSoftmaxTile = 2048;

/// Floats of a row: its exponentials, and for each tile the maximum that they are relative to; a line of distance.
[[nodiscard]] constexpr std::int64_t kept_floats(std::int64_t cols) noexcept {
  return cols + (cols + kSoftmaxTile - 1) / kSoftmaxTile + 16;
}

}  // namespace warpmeter::primer::cpu_tools
