#pragma once

#include <cstddef>
#include <cstdint>

namespace warpmeter::ceilings::detail {

/// How a thread walks its part: as `streams` interleaved streams, since one does not keep every memory's queue full.
inline constexpr std::size_t kMostStreams = 4;
/// A part's length and start are multiples of this.
inline constexpr std::size_t kStreamGrain = 64 * kMostStreams;

#define WM_DECLARE_STREAM(isa)                                                                                        \
  namespace isa {                                                                                                     \
  void copy_stream(char* destination, const char* source, std::size_t bytes, bool non_temporal, std::size_t streams); \
  std::uint32_t read_stream(const char* source, std::size_t bytes, std::size_t streams);                              \
  }
WM_DECLARE_STREAM(generic)
WM_DECLARE_STREAM(avx2)
WM_DECLARE_STREAM(avx512)
#undef WM_DECLARE_STREAM

}  // namespace warpmeter::ceilings::detail
