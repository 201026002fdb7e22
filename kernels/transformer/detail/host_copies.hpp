#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::transformer::detail {

/// `bytes` from host memory to the context's device, or back. Both wait, so that the host's array may go away or be
/// read. Throw DeviceError.
void to_device(const Context& context, void* to, const void* from, std::size_t bytes);
void to_host(const Context& context, void* to, const void* from, std::size_t bytes);

/// `count` elements of the device, of any floating type, as fp32 on the host. Waits. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::vector<float> floats_on_host(const Context& context, const void* data, DType dtype,
                                                std::int64_t count);

}  // namespace warpmeter::transformer::detail
