// The inner loops of the CPU's copy, read and traffic, compiled once for each instruction set.
#include "kernels/ceilings/detail/stream_isa.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace warpmeter::ceilings::detail::WM_ISA {
namespace {

/// A cache line; the compiler cuts it into registers of the instruction set's width.
using Line = std::uint32_t __attribute__((vector_size(64), may_alias));

/// A register. Of a Line that it computes with GCC keeps parts in memory, which halves what is written by it.
#if defined(WM_ISA_avx512)
constexpr std::size_t kVectorBytes = 64;
#elif defined(WM_ISA_avx2)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
using Vector = std::uint32_t __attribute__((vector_size(kVectorBytes), may_alias));
constexpr std::size_t kLanes = kVectorBytes / sizeof(std::uint32_t);

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

template <bool kNonTemporal>
inline void store(char* destination, Vector value) {
#if defined(__x86_64__)
  if constexpr (kNonTemporal) {
#if defined(WM_ISA_avx512)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), reinterpret_cast<__m512i>(value));
#elif defined(WM_ISA_avx2)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(destination), reinterpret_cast<__m256i>(value));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination), reinterpret_cast<__m128i>(value));
#endif
    return;
  }
#endif
  *reinterpret_cast<Vector*>(destination) = value;
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

/// Four, so that adding never waits for adding.
using Sums = Vector[4];

/// Adds whole lines up, as so many interleaved streams.
template <std::size_t kStreams>
inline void add_up(const char* source, std::size_t lines, Sums& sums) {
  constexpr std::size_t kStep = kMostStreams / kStreams * sizeof(Line);  // of a stream at a time
  const std::size_t of_stream = lines * sizeof(Line) / (kStreams * kStep) * kStep;
  Sums local = {sums[0], sums[1], sums[2], sums[3]};
  for (std::size_t offset = 0; offset < of_stream; offset += kStep) {
#pragma GCC unroll 4
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 16
      for (std::size_t at = 0; at < kStep; at += kVectorBytes) {
        local[(stream * kStep + at) / kVectorBytes % 4] +=
            *reinterpret_cast<const Vector*>(source + stream * of_stream + offset + at);
      }
    }
  }
  for (std::size_t at = kStreams * of_stream; at < lines * sizeof(Line); at += kVectorBytes) {
    local[0] += *reinterpret_cast<const Vector*>(source + at);
  }
  for (int i = 0; i < 4; ++i) sums[i] = local[i];
}

std::uint32_t total_of(const Sums& sums) {
  const Vector total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  std::uint32_t result = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) result += total[lane];
  return result;
}

template <std::size_t kStreams>
std::uint32_t read(const char* source, std::size_t bytes) {
  Sums sums = {};
  add_up<kStreams>(source, bytes / sizeof(Line), sums);
  return total_of(sums);
}

/// Writes whole lines of numbers that count up, as so many interleaved streams; `made` is the next.
template <bool kNonTemporal, std::size_t kStreams>
inline void write_made(char* destination, std::size_t lines, Vector& made) {
  constexpr std::uint32_t kCount = 0x9E3779B9;  // odd: a lane repeats itself after 2^32 vectors
  constexpr std::size_t kStep = 4 * sizeof(Line);
  const std::size_t of_stream = lines * sizeof(Line) / (kStreams * kStep) * kStep;
  Vector local = made;
  for (std::size_t offset = 0; offset < of_stream; offset += kStep) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 16
      for (std::size_t at = 0; at < kStep; at += kVectorBytes) {
        store<kNonTemporal>(destination + stream * of_stream + offset + at, local);
        local += kCount;
      }
    }
  }
  for (std::size_t at = kStreams * of_stream; at < lines * sizeof(Line); at += kVectorBytes) {
    store<kNonTemporal>(destination + at, local);
    local += kCount;
  }
  made = local;
}

template <bool kNonTemporal, std::size_t kStreams>
std::uint32_t traffic(const TrafficPart& part) {
  const TrafficMix& mix = *part.mix;
  Sums sums = {};
  Vector made;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    made[lane] = static_cast<std::uint32_t>(random_bits(part.begin * kLanes + lane));
  }
  for (std::size_t tile = part.begin; tile < part.end; ++tile) {
    const std::size_t begin = tile * mix.tile(), lines = std::min(mix.tile(), mix.larger() - begin);
    const std::size_t first = mix.first(tile), copied = mix.first(tile + 1) - first;
    const char* const source = part.source + (part.writes_more ? first : begin) * sizeof(Line);
    char* const destination = part.destination + (part.writes_more ? begin : first) * sizeof(Line);
    for (std::size_t at = 0; at < copied * sizeof(Line); at += kVectorBytes) {
      store<kNonTemporal>(destination + at, *reinterpret_cast<const Vector*>(source + at));
    }
    if (part.writes_more) {
      write_made<kNonTemporal, kStreams>(destination + copied * sizeof(Line), lines - copied, made);
    } else {
      add_up<kStreams>(source + copied * sizeof(Line), lines - copied, sums);
    }
  }
  if constexpr (kNonTemporal) fence_non_temporal();
  return total_of(sums);
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

std::uint32_t traffic_stream(const TrafficPart& part, bool non_temporal, std::size_t streams) {
  if (non_temporal) return streams == 1 ? traffic<true, 1>(part) : traffic<true, kMostStreams>(part);
  return streams == 1 ? traffic<false, 1>(part) : traffic<false, kMostStreams>(part);
}

}  // namespace warpmeter::ceilings::detail::WM_ISA
