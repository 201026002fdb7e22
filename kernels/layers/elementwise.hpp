#pragma once

#include <cstdint>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// One operation on dense arrays of `count` elements, as an eager framework runs them one by one. Arithmetic is fp32,
/// each result rounded once. Outputs may be inputs.
enum class ElementwiseOperation : std::uint8_t {
  add,            ///< out = a + b
  multiply,       ///< out = a * b
  silu,           ///< out = a / (1 + exp(-a))
  silu_backward,  ///< out = b * silu'(a)
};

struct Elementwise {
  ElementwiseOperation operation = ElementwiseOperation::add;
  std::int64_t count = 0;
  DType dtype = DType::fp32;              ///< of all: fp32, bf16 or fp16
  const void *a = nullptr, *b = nullptr;  ///< b is not read by silu
  void* out = nullptr;

  [[nodiscard]] double flops() const {
    constexpr double kEach[] = {1, 1, 4, 7};
    return kEach[static_cast<int>(operation)] * static_cast<double>(count);
  }
  [[nodiscard]] double bytes() const {
    return (operation == ElementwiseOperation::silu ? 2.0 : 3.0) * static_cast<double>(count) *
           static_cast<double>(size_of(dtype));
  }
};
void elementwise(const Context& context, const Elementwise& arguments);

/// out[i] = in[i] in another type, rounded to nearest even; fp32, bf16 and fp16, either way.
struct Convert {
  std::int64_t count = 0;
  DType in_dtype = DType::fp32, out_dtype = DType::fp32;
  const void* in = nullptr;
  void* out = nullptr;

  [[nodiscard]] double flops() const { return 0; }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(count) * static_cast<double>(size_of(in_dtype) + size_of(out_dtype));
  }
};
void convert(const Context& context, const Convert& arguments);

}  // namespace warpmeter::layers
