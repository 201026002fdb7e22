#pragma once

#include <cstdint>

namespace warpmeter::isa_math_probe {

/// One operation of isa_math.hpp over an array; 16-bit types are rounded to and widened again.
enum class Operation : std::uint8_t { exp, exp2, bf16, fp16, lane_sum, lane_max };
using Runner = void (*)(Operation operation, const float* in, float* out, std::int64_t count);

namespace generic {
Runner probe();
int width();
}  // namespace generic
namespace avx2 {
Runner probe();
int width();
}  // namespace avx2
namespace avx512 {
Runner probe();
int width();
}  // namespace avx512

}  // namespace warpmeter::isa_math_probe
