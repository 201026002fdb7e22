#include "kernels/runtime/device.hpp"

#include <charconv>
#include <stdexcept>

#include "kernels/runtime/detail/backend.hpp"

namespace warpmeter {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  const int count = cuda_device_count();
  std::string accepted = "accepted are auto and cpu";
  if (count == 1) accepted = "accepted are auto, cpu and cuda (= cuda:0)";
  if (count > 1) accepted = "accepted are auto, cpu, cuda and cuda:0 to cuda:" + std::to_string(count - 1);
  throw std::invalid_argument("device '" + text + "' " + why + "; " + accepted);
}

}  // namespace

std::string name(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "auto") return cuda_device_count() > 0 ? Device::cuda(0) : Device::cpu();

  int index = 0;
  if (text != "cuda") {
    constexpr std::string_view kPrefix = "cuda:";
    if (text.compare(0, kPrefix.size(), kPrefix) != 0) refuse(text, "is not known");
    const char* const begin = text.data() + kPrefix.size();
    const char* const end = text.data() + text.size();
    if (begin == end || *begin < '0' || *begin > '9') refuse(text, "is not known");
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (stop != end) refuse(text, "is not known");
    if (error != std::errc()) refuse(text, "is not there");
  }
  const int count = cuda_device_count();
  if (count == 0) refuse(text, "is not there (" + cuda_unavailable_reason() + ")");
  if (index >= count) refuse(text, "is not there");
  return Device::cuda(index);
}

bool built_with_cuda() noexcept {
  return detail::find_backend(DeviceKind::cuda) != nullptr;
}

int cuda_device_count() noexcept {
  const detail::Backend* const cuda = detail::find_backend(DeviceKind::cuda);
  return cuda == nullptr ? 0 : cuda->device_count();
}

std::string cuda_unavailable_reason() {
  const detail::Backend* const cuda = detail::find_backend(DeviceKind::cuda);
  return cuda == nullptr ? "built without CUDA" : cuda->unavailable_reason();
}

DeviceProperties properties(Device device) {
  return detail::backend(device.kind).properties(device.index);
}

std::size_t free_memory_bytes(Device device) {
  return detail::backend(device.kind).free_memory(device.index);
}

void synchronize(Device device) {
  detail::backend(device.kind).synchronize(device.index);
}

DeviceGuard::DeviceGuard(Device device) {
  if (device.is_cuda()) previous_ = detail::backend(device.kind).make_current(device.index);
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) detail::find_backend(DeviceKind::cuda)->restore_current(previous_);
}

}  // namespace warpmeter
