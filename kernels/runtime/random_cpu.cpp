#include <algorithm>

#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::detail {

namespace generic {
void random_fill(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill);
}
#if defined(__x86_64__)
namespace avx2 {
void random_fill(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill);
}
namespace avx512 {
void random_fill(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill);
}
#endif

void random_fill_serial(CpuIsa isa, void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill) {
#if defined(__x86_64__)
  if (isa == CpuIsa::avx512) return avx512::random_fill(data, first, count, fill);
  if (isa == CpuIsa::avx2) return avx2::random_fill(data, first, count, fill);
#endif
  static_cast<void>(isa);
  generic::random_fill(data, first, count, fill);
}

void random_fill_cpu(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 16;  // elements: the cost of dealing one out does not show
  const CpuIsa isa = cpu_isa();
  const std::size_t element = size_of(fill.dtype);
  parallel_for((count + kChunk - 1) / kChunk, [&](std::int64_t chunk, int /*worker*/) {
    const std::int64_t begin = chunk * kChunk;
    random_fill_serial(isa, static_cast<char*>(data) + static_cast<std::size_t>(begin) * element,
                       first + static_cast<std::uint64_t>(begin), std::min(kChunk, count - begin), fill);
  });
}

}  // namespace warpmeter::detail
