#include "kernels/collectives/detail/reduce.hpp"

#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::collectives::detail {

namespace generic {
void reduce(const Reduction& reduction);
void copy_streaming(char* destination, const char* source, std::int64_t bytes);
}  // namespace generic
#if defined(__x86_64__)
namespace avx2 {
void reduce(const Reduction& reduction);
void copy_streaming(char* destination, const char* source, std::int64_t bytes);
}  // namespace avx2
namespace avx512 {
void reduce(const Reduction& reduction);
void copy_streaming(char* destination, const char* source, std::int64_t bytes);
}  // namespace avx512
#endif

void reduce(const Reduction& reduction) {
#if defined(__x86_64__)
  switch (cpu_isa()) {
    case CpuIsa::avx512:
      return avx512::reduce(reduction);
    case CpuIsa::avx2:
      return avx2::reduce(reduction);
    case CpuIsa::generic:
      break;
  }
#endif
  generic::reduce(reduction);
}

void copy_streaming(char* destination, const char* source, std::int64_t bytes) {
#if defined(__x86_64__)
  switch (cpu_isa()) {
    case CpuIsa::avx512:
      return avx512::copy_streaming(destination, source, bytes);
    case CpuIsa::avx2:
      return avx2::copy_streaming(destination, source, bytes);
    case CpuIsa::generic:
      break;
  }
#endif
  generic::copy_streaming(destination, source, bytes);
}

}  // namespace warpmeter::collectives::detail
