#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ceilings/detail/random_value.hpp"

namespace warpmeter::ceilings::detail {

/// How the elements of a smaller buffer are dealt out evenly to the tiles of a larger one: tile t, the larger one's
/// elements from t * tile() on, goes with the smaller one's [first(t), first(t + 1)), never more than its own.
class TrafficMix {
 public:
  /// Elements. `tile` is a multiple of `grain`, `grain` a power of two: tiles begin at multiples of it in the smaller
  /// buffer, too.
  TrafficMix(std::size_t larger, std::size_t smaller, std::size_t tile, std::size_t grain)
      : larger_(larger), smaller_(smaller), tile_(tile), grain_(grain) {
    const double per_tile = static_cast<double>(tile) * static_cast<double>(smaller) /
                            static_cast<double>(std::max<std::size_t>(larger, 1));
    // Rounded up, past what the double itself was rounded by, so that nothing is left over after the last tile.
    step_ = std::min(std::uint64_t{tile} << kFraction,
                     static_cast<std::uint64_t>(per_tile * static_cast<double>(std::uint64_t{1} << kFraction)) + 2);
  }

  [[nodiscard]] WM_HOST_DEVICE std::size_t larger() const { return larger_; }
  [[nodiscard]] WM_HOST_DEVICE std::size_t smaller() const { return smaller_; }
  [[nodiscard]] WM_HOST_DEVICE std::size_t tile() const { return tile_; }
  [[nodiscard]] WM_HOST_DEVICE std::size_t tiles() const { return (larger_ + tile_ - 1) / tile_; }
  [[nodiscard]] WM_HOST_DEVICE std::size_t first(std::size_t at_tile) const {
    const std::uint64_t exact = (at_tile * step_) >> kFraction;
    const std::uint64_t whole = (exact + grain_ - 1) & ~static_cast<std::uint64_t>(grain_ - 1);
    return whole < smaller_ ? whole : smaller_;
  }

 private:
  static constexpr int kFraction = 24;  ///< bits: 2^40 elements are counted without overflow

  std::size_t larger_, smaller_, tile_, grain_;
  std::uint64_t step_;  ///< the smaller one's elements a tile
};

}  // namespace warpmeter::ceilings::detail
