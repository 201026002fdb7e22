#include "kernels/runtime/detail/backend.hpp"

#include "kernels/runtime/check.hpp"

namespace warpmeter::detail {

Backend* find_backend(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::cpu:
      return &backend_cpu();
    case DeviceKind::cuda:
#if WARPMETER_CUDA
      return &backend_cuda();
#else
      return nullptr;
#endif
  }
  return nullptr;
}

Backend& backend(DeviceKind kind) {
  Backend* const found = find_backend(kind);
  if (found == nullptr) throw DeviceError("this program was built without CUDA", false);
  return *found;
}

}  // namespace warpmeter::detail
