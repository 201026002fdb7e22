// The inner loops of the CPU's copy and read, compiled once for each instruction set.
#include "kernels/ceilings/detail/stream_isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace warpmeter::ceilings::detail::WM_ISA {
namespace {

/// A cache line; the compiler cuts it into registers of the instruction set's width.
using Line = std::uint32_t __attribute__((vector_size(64), may_alias));

inline void copy_line_non_temporal(char* destination, const char* source) {
#if defined(WM_ISA_avx512)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), _mm512_load_si512(source));
#elif defined(WM_ISA_avx2)
  for (int i = 0; i < 2; ++i) {
    const __m256i half = _mm256_load_si256(reinterpret_cast<const __m256i*>(source) + i);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(destination) + i, half);
  }
#elif defined(__x86_64__)
  for (int i = 0; i < 4; ++i) {
    const __m128i quarter = _mm_load_si128(reinterpret_cast<const __m128i*>(source) + i);
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination) + i, quarter);
  }
#else
  *reinterpret_cast<Line*>(destination) = *reinterpret_cast<const Line*>(source);
#endif
}

inline void fence_non_temporal() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <bool kNonTemporal, std::size_t kStreams>
void copy(char* destination, const char* source, std::size_t bytes) {
  const std::size_t stream_bytes = bytes / kStreams;
  for (std::size_t offset = 0; offset < stream_bytes; offset += sizeof(Line)) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::size_t at = stream * stream_bytes + offset;
      if constexpr (kNonTemporal) {
        copy_line_non_temporal(destination + at, source + at);
      } else {
        *reinterpret_cast<Line*>(destination + at) = *reinterpret_cast<const Line*>(source + at);
      }
    }
  }
  if constexpr (kNonTemporal) fence_non_temporal();
}

template <std::size_t kStreams>
std::uint32_t read(const char* source, std::size_t bytes) {
  const std::size_t stream_bytes = bytes / kStreams;
  Line sums[kMostStreams] = {};
  // Four independent sums whatever the streams, so that adding never waits for adding.
  constexpr std::size_t kLines = kMostStreams / kStreams;
  for (std::size_t offset = 0; offset < stream_bytes; offset += kLines * sizeof(Line)) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      for (std::size_t line = 0; line < kLines; ++line) {
        sums[stream * kLines + line] +=
            *reinterpret_cast<const Line*>(source + stream * stream_bytes + offset + line * sizeof(Line));
      }
    }
  }
  const Line total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < sizeof(Line) / sizeof(std::uint32_t); ++i) result += total[i];
  return result;
}

}  // namespace

void copy_stream(char* destination, const char* source, std::size_t bytes, bool non_temporal, std::size_t streams) {
  if (non_temporal) {
    streams == 1 ? copy<true, 1>(destination, source, bytes) : copy<true, kMostStreams>(destination, source, bytes);
  } else {
    streams == 1 ? copy<false, 1>(destination, source, bytes) : copy<false, kMostStreams>(destination, source, bytes);
  }
}

std::uint32_t read_stream(const char* source, std::size_t bytes, std::size_t streams) {
  return streams == 1 ? read<1>(source, bytes) : read<kMostStreams>(source, bytes);
}

}  // namespace warpmeter::ceilings::detail::WM_ISA
