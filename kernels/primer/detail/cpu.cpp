#include "kernels/runtime/device.hpp"

namespace warpmeter::primer::cpu_tools {

bool exceeds_cache(std::size_t bytes);

bool exceeds_cache(std::size_t bytes) {
  static const std::size_t cache = properties(Device::cpu()).last_level_cache_bytes;
  return bytes > cache;
}

}  // namespace warpmeter::primer::cpu_tools
