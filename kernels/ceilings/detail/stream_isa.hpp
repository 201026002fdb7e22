#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ceilings/detail/traffic_mix.hpp"

namespace warpmeter::ceilings::detail {

/// How a thread walks its part: as `streams` interleaved streams, since one does not keep every memory's queue full.
inline constexpr std::size_t kMostStreams = 4;
/// A part's length and start are multiples of this.
inline constexpr std::size_t kStreamGrain = 64 * kMostStreams;

/// A thread's part of a TrafficWorkload: tiles [begin, end) of a mix of cache lines.
struct TrafficPart {
  char* destination;  ///< of the whole, as is source
  const char* source;
  const TrafficMix* mix;
  bool writes_more;  ///< the destination is the larger one, or they are alike
  std::size_t begin, end;
};

#define WM_DECLARE_STREAM(isa)                                                                                        \
  namespace isa {                                                                                                     \
  void copy_stream(char* destination, const char* source, std::size_t bytes, bool non_temporal, std::size_t streams); \
  std::uint32_t read_stream(const char* source, std::size_t bytes, std::size_t streams);                              \
  /* The sum of what is only read. What is not copied has streams, within a tile. */                                  \
  std::uint32_t traffic_stream(const TrafficPart& part, bool non_temporal, std::size_t streams);                      \
  }
WM_DECLARE_STREAM(generic)
WM_DECLARE_STREAM(avx2)
WM_DECLARE_STREAM(avx512)
#undef WM_DECLARE_STREAM

}  // namespace warpmeter::ceilings::detail
