#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/stream.hpp"

namespace warpmeter::ceilings::detail {

/// data[i] = random_value(seed + i), as fp32 or rounded to bf16. In the stream's order.
void fill_random_fp32(void* data, std::size_t elements, std::uint64_t seed, StreamView stream);
void fill_random_bf16(void* data, std::size_t elements, std::uint64_t seed, StreamView stream);

}  // namespace warpmeter::ceilings::detail
