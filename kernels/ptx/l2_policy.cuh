#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// What the L2 cache should do with the lines of a copy; the values are those of createpolicy.fractional 1.0.
enum class L2Policy : std::uint64_t {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000,
};

}  // namespace warpmeter::ptx
