#pragma once

#include <cstdint>
#include <string_view>

namespace warpmeter {

/// How a kernel multiplies: which measured matmul ceiling its speed is held against.
enum class ComputePath : std::uint8_t {
  fp32,    ///< fp32 multiply-adds
  tf32,    ///< one TF32 tensor-core product
  tf32x3,  ///< fp32 accuracy from three TF32 products; its ceiling is tf32 / 3
  half,    ///< bf16 or fp16 matrix units
};

[[nodiscard]] constexpr std::string_view name(ComputePath path) noexcept {
  switch (path) {
    case ComputePath::fp32:
      return "fp32";
    case ComputePath::tf32:
      return "tf32";
    case ComputePath::tf32x3:
      return "3xtf32";
    case ComputePath::half:
      return "16bit";
  }
  return "";
}

}  // namespace warpmeter
