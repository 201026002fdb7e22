#pragma once

#include <cstdint>

/// What softmaxes on the CPU keep: for the kernels' descriptions, which know no vectors, and for cpu_softmax.hpp.
namespace warpmeter::primer::cpu_tools {

/// Numbers whose exponentials are taken relative to one maximum; those of softmax_online, 64 KiB.
inline constexpr std::int64_t kSoftmaxTile = 2048, kWideTile = 16384;

/// Floats of a row of softmax_one_read: its exponentials, and for each tile the maximum that they are relative to; a
/// line of distance.
[[nodiscard]] constexpr std::int64_t kept_floats(std::int64_t cols) noexcept {
  return cols + (cols + kSoftmaxTile - 1) / kSoftmaxTile + 16;
}

}  // namespace warpmeter::primer::cpu_tools
