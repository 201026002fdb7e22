#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace warpmeter {

/// Element types. `tf32` is a compute mode: its storage is fp32, its matrix products round operands to 10 mantissa
/// bits.
enum class DType : std::uint8_t { fp64, fp32, tf32, bf16, fp16, int64, int32, uint8 };

/// "fp32", "bf16", ...: the spelling that options, files and JSON share.
[[nodiscard]] std::string_view name(DType dtype) noexcept;

/// The inverse of name(); nullopt for anything else.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view text) noexcept;

/// Bytes of one stored element.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp64:
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::tf32:
    case DType::int32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    case DType::uint8:
      return 1;
  }
  return 0;
}

/// The type in memory: fp32 for tf32, else the type itself.
[[nodiscard]] constexpr DType storage_of(DType dtype) noexcept {
  return dtype == DType::tf32 ? DType::fp32 : dtype;
}

/// bf16 and fp16.
[[nodiscard]] constexpr bool is_16bit(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::fp16;
}

/// Unit roundoff (half a unit in the last place at 1): 2^-8 for bf16, 2^-11 for fp16 and tf32, 2^-24 for fp32.
[[nodiscard]] constexpr double unit_roundoff(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp64:
      return 0x1p-53;
    case DType::fp32:
      return 0x1p-24;
    case DType::tf32:
    case DType::fp16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0.0;
  }
}

}  // namespace warpmeter
