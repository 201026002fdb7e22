#include "kernels/runtime/dtype.hpp"

#include <array>
#include <utility>

namespace warpmeter {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames{{{DType::fp64, "fp64"},
                                                                    {DType::fp32, "fp32"},
                                                                    {DType::tf32, "tf32"},
                                                                    {DType::bf16, "bf16"},
                                                                    {DType::fp16, "fp16"},
                                                                    {DType::int64, "int64"},
                                                                    {DType::int32, "int32"},
                                                                    {DType::uint8, "uint8"}}};

}  // namespace

std::string_view name(DType dtype) noexcept {
  for (const auto& [value, text] : kNames) {
    if (value == dtype) return text;
  }
  return "unknown";
}

std::optional<DType> parse_dtype(std::string_view text) noexcept {
  for (const auto& [value, known] : kNames) {
    if (known == text) return value;
  }
  return std::nullopt;
}

}  // namespace warpmeter
