#include "kernels/attention/registry.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/attention/flash.hpp"
#if WARPMETER_CUDNN
#include "kernels/attention/cudnn_cuda.hpp"
#endif
#if WARPMETER_CUDA
#include "kernels/attention/flash_cuda.hpp"
#include "kernels/attention/fused_cuda.hpp"
#include "kernels/attention/naive_cuda.hpp"
#endif
#include "kernels/attention/fused.hpp"
#include "kernels/attention/naive.hpp"
#include "kernels/attention/reference.hpp"

namespace warpmeter::attention {

namespace {

// Every name of any build, in the order of tables. An implementation that is new: its name here, its object below.
constexpr std::array<std::string_view, 8> kKnownNames = {"reference",      "naive",      "fused",      "flash",
                                                         "flash_two_pass", "flash_sm80", "flash_sm90", "cudnn"};

// The objects are made on first use; no order of static initialization to mind.
std::span<const Implementation* const> cpu_implementations() {
  static const std::vector<const Implementation*> table = {
      // One line an implementation.
      &reference_cpu(), &naive_cpu(), &fused_cpu(), &flash_cpu(), &flash_two_pass_cpu(),
  };
  return table;
}

std::span<const Implementation* const> cuda_implementations() {
#if WARPMETER_CUDA
  static const std::vector<const Implementation*> table = {
    // One line an implementation.
    &naive_cuda(),
    &fused_cuda(),
    &flash_cuda(),
    &flash_two_pass_cuda(),
    &flash_sm80_cuda(),
    &flash_sm90_cuda(),
#if WARPMETER_CUDNN
    &cudnn_cuda(),
#endif
  };
  return table;
#else
  return {};
#endif
}

}  // namespace

std::span<const Implementation* const> implementations(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu_implementations() : cuda_implementations();
}

const Implementation* find_implementation(DeviceKind kind, std::string_view name) {
  for (const Implementation* implementation : implementations(kind)) {
    if (implementation->name() == name) return implementation;
  }
  return nullptr;
}

bool known_implementation(std::string_view name) {
  return std::find(kKnownNames.begin(), kKnownNames.end(), name) != kKnownNames.end();
}

std::span<const std::string_view> known_implementation_names() {
  return kKnownNames;
}

}  // namespace warpmeter::attention
