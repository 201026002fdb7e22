#include "kernels/ceilings/spin.hpp"

#include <chrono>

#include "kernels/ceilings/detail/backends.hpp"

namespace warpmeter::ceilings {

void spin_for(std::int64_t duration_ns, StreamView stream) {
#if WARPMETER_CUDA
  if (stream.device.is_cuda()) return detail::spin_for_cuda(duration_ns, stream);
#endif
  (void)stream;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(duration_ns);
  while (std::chrono::steady_clock::now() < end) {
  }
}

}  // namespace warpmeter::ceilings
