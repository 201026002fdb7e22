#include "kernels/runtime/tensor.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};
};

TEST_F(TensorTest, UndefinedByDefault) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.elements(), 0);
  EXPECT_THROW(tensor.fill_bytes(0, context_.stream), CheckError);
  EXPECT_THROW(static_cast<void>(tensor.to(context_)), CheckError);
}

TEST_F(TensorTest, ShapeSizesAndBytes) {
  const Tensor tensor(context_, {2, 3, 5}, DType::bf16);
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.dtype(), DType::bf16);
  EXPECT_EQ(tensor.device(), Device::cpu());
  EXPECT_EQ(tensor.elements(), 30);
  EXPECT_EQ(tensor.bytes(), 60U);
  ASSERT_EQ(tensor.shape().size(), 3U);
  EXPECT_EQ(tensor.size(0), 2);
  EXPECT_EQ(tensor.size(2), 5);
  EXPECT_THROW(static_cast<void>(tensor.size(3)), CheckError);
  EXPECT_EQ(allocator_.stats().current.requested, 60U);
  EXPECT_EQ(allocator_.stats().current.allocated, 512U);
}

TEST_F(TensorTest, Tf32IsStoredAsFp32) {
  const Tensor tensor(context_, {7}, DType::tf32);
  EXPECT_EQ(tensor.bytes(), 28U);
  EXPECT_NE(tensor.data_as<float>(), nullptr);
}

TEST_F(TensorTest, DataAsChecksTheElementSize) {
  const Tensor tensor(context_, {4}, DType::fp32);
  EXPECT_EQ(static_cast<void*>(tensor.data_as<float>()), tensor.data());
  EXPECT_THROW(static_cast<void>(tensor.data_as<double>()), CheckError);
  EXPECT_THROW(static_cast<void>(tensor.data_as<std::uint16_t>()), CheckError);
}

TEST_F(TensorTest, ScalarsAndEmptyShapes) {
  const Tensor scalar(context_, std::initializer_list<std::int64_t>{}, DType::fp64);
  EXPECT_EQ(scalar.elements(), 1);
  const Tensor empty(context_, {3, 0, 5}, DType::fp32);
  EXPECT_TRUE(empty.defined());
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_NO_THROW(empty.fill_bytes(1, context_.stream));
  EXPECT_EQ(empty.to(context_).elements(), 0);
  const Tensor huge_but_empty(context_, {std::int64_t{1} << 62, 0, std::int64_t{1} << 62}, DType::fp32);
  EXPECT_EQ(huge_but_empty.elements(), 0);
}

TEST_F(TensorTest, RefusesWhatCannotBe) {
  EXPECT_THROW(Tensor(context_, {-1}, DType::fp32), CheckError);
  EXPECT_THROW(Tensor(context_, {std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::uint8), std::overflow_error);
  EXPECT_THROW(Tensor(context_, {std::int64_t{1} << 61}, DType::fp32), std::overflow_error);
  EXPECT_THROW(Tensor(context_, {std::int64_t{1} << 60}, DType::fp32), OutOfMemory);
  EXPECT_THROW(Tensor(Context{{Device::cpu(), nullptr}, nullptr}, {1}, DType::fp32), CheckError);
  EXPECT_EQ(allocator_.stats().current.allocated, 0U);
}

TEST_F(TensorTest, CopiesShareAndTheLastGivesBack) {
  Tensor a(context_, {1000}, DType::fp32);
  Tensor b = a;
  EXPECT_EQ(a.data(), b.data());
  a.reset();
  EXPECT_FALSE(a.defined());
  EXPECT_EQ(allocator_.stats().current.requested, 4000U);
  b = Tensor();
  EXPECT_EQ(allocator_.stats().current.requested, 0U);
  EXPECT_EQ(allocator_.stats().current.allocated, 0U);
}

TEST_F(TensorTest, ToCopiesTheValues) {
  const Tensor a(context_, {3, 100}, DType::int32);
  for (int i = 0; i < 300; ++i) a.data_as<std::int32_t>()[i] = i * i;
  const Tensor b = a.to(context_);
  EXPECT_NE(a.data(), b.data());
  EXPECT_EQ(b.dtype(), DType::int32);
  EXPECT_EQ(b.size(1), 100);
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
}

TEST_F(TensorTest, PoisonMakesNaN) {
  const Tensor a(context_, {100}, DType::fp32);
  a.fill_bytes(0xFF, context_.stream);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(std::isnan(a.data_as<float>()[i]));
}

TEST_F(TensorTest, BuffersMove) {
  Buffer a(context_, 100);
  EXPECT_EQ(a.bytes(), 100U);
  void* const data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: what a moved-from buffer is
  Buffer c(context_, 200);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(allocator_.stats().current.requested, 100U);
  Buffer& same = c;
  c = std::move(same);
  EXPECT_EQ(c.data(), data);
}

}  // namespace
}  // namespace warpmeter
