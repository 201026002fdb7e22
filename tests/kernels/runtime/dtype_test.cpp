#include "kernels/runtime/dtype.hpp"

#include <gtest/gtest.h>

namespace warpmeter {
namespace {

struct Expected {
  DType dtype;
  const char* name;
  std::size_t size;
  DType storage;
  double roundoff;
};

constexpr Expected kTypes[] = {
    {DType::fp64, "fp64", 8, DType::fp64, 0x1p-53}, {DType::fp32, "fp32", 4, DType::fp32, 0x1p-24},
    {DType::tf32, "tf32", 4, DType::fp32, 0x1p-11}, {DType::bf16, "bf16", 2, DType::bf16, 0x1p-8},
    {DType::fp16, "fp16", 2, DType::fp16, 0x1p-11}, {DType::int64, "int64", 8, DType::int64, 0},
    {DType::int32, "int32", 4, DType::int32, 0},    {DType::uint8, "uint8", 1, DType::uint8, 0},
};

TEST(DType, NamesSizesAndRoundoffs) {
  for (const Expected& type : kTypes) {
    EXPECT_EQ(name(type.dtype), type.name);
    EXPECT_EQ(parse_dtype(type.name), type.dtype) << type.name;
    EXPECT_EQ(size_of(type.dtype), type.size) << type.name;
    EXPECT_EQ(storage_of(type.dtype), type.storage) << type.name;
    EXPECT_EQ(unit_roundoff(type.dtype), type.roundoff) << type.name;
    EXPECT_EQ(is_16bit(type.dtype), type.size == 2) << type.name;
  }
}

TEST(DType, ParseTakesTheExactSpellingOnly) {
  for (const char* text :
       {"", "fp", "fp3", "fp322", "FP32", " fp32", "fp32 ", "float", "half", "bfloat16", "int", "int8"}) {
    EXPECT_EQ(parse_dtype(text), std::nullopt) << '"' << text << '"';
  }
}

}  // namespace
}  // namespace warpmeter
