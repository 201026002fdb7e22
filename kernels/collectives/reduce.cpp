#include "kernels/collectives/detail/reduce.hpp"

#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::collectives::detail {

namespace generic {
void reduce(const Reduction& reduction);
}
#if defined(__x86_64__)
namespace avx2 {
void reduce(const Reduction& reduction);
}
namespace avx512 {
void reduce(const Reduction& reduction);
}
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

}  // namespace warpmeter::collectives::detail
