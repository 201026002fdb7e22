#pragma once

#include <cstdint>

namespace warpmeter::attention::cuda_decode {

/// Byte offset of a 16-byte chunk of a row of kChunks: rows of eight in a column meet different banks.
template <int kChunks>
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>((row * kChunks + (chunk ^ (row & 7))) * 16);
}

}  // namespace warpmeter::attention::cuda_decode
