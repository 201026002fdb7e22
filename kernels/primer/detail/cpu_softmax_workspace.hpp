#pragma once

#include <cstdint>

/// What softmaxes on the CPU keep: for the kernels' descriptions, which know no vectors, and for cpu_softmax.hpp.
namespace warpmeter::primer::cpu_tools {

/// Scores whose exponentials are taken relative to one maximum, which is looked for in the first-level cache.
inline constexpr std::int64_t kSoftmaxTileBytes = 8192;

/// Floats for a row's exponentials and, for each tile, the maximum that they are relative to; whole pages, so that
/// threads' rows begin where the operands' rows do.
[[nodiscard]] constexpr std::int64_t kept_floats(std::int64_t cols) noexcept {
  constexpr std::int64_t kLeastTile = kSoftmaxTileBytes / 4, kPage = 1024;
  return (cols + (cols + kLeastTile - 1) / kLeastTile + kPage - 1) / kPage * kPage;
}

}  // namespace warpmeter::primer::cpu_tools
