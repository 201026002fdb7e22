#include "kernels/ceilings/detail/cached_matmul.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

#if defined(WARPMETER_EMULATED_AMX)
namespace warpmeter::ceilings::detail::amx_emulated {
extern const CachedMatmulKernel kCachedMatmul;
}
#endif

namespace warpmeter::ceilings {
namespace {

using detail::Bf16Products;
using detail::CachedMatmulKernel;
using detail::find_cached_matmul;

class CachedMatmul : public testing::Test {
 protected:
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};
};

double element(const void* data, std::int64_t index, DType storage) {
  if (storage == DType::fp32) return static_cast<const float*>(data)[index];
  const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[index]) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Every worker's product against fp64, on random data of deviation 1. Returns how many workers had one.
int check_tiles(const CachedMatmulWorkload& work) {
  int done = 0;
  for (int worker = 0; worker < work.workers(); ++worker) {
    const auto tile = work.tile(worker);
    if (std::isnan(tile.c[0])) continue;  // got nothing to do
    ++done;
    double largest = 0, error = 0, squares = 0;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      for (std::int64_t column = 0; column < tile.columns; ++column) {
        double expected = 0;
        for (std::int64_t k = 0; k < tile.depth; ++k) {
          const std::int64_t at = (k / tile.b_group * tile.columns + column) * tile.b_group + k % tile.b_group;
          expected += element(tile.a, row * tile.depth + k, tile.storage) * element(tile.b, at, tile.storage);
        }
        expected *= static_cast<double>(tile.passes);
        const double difference = std::abs(tile.c[row * tile.columns + column] - expected);
        error = difference > error || std::isnan(difference) ? difference : error;
        largest = std::max(largest, std::abs(expected));
        if (std::isnan(error)) break;
      }
      for (std::int64_t k = 0; k < tile.depth; ++k) {
        const double a = element(tile.a, row * tile.depth + k, tile.storage);
        squares += a * a;
      }
    }
    EXPECT_LE(error, 1e-5 * largest);  // false for NaN
    EXPECT_NEAR(squares / static_cast<double>(tile.rows * tile.depth), 1.0, 0.15);
  }
  return done;
}

void run_and_check(const Context& context, const CachedMatmulKernel& kernel) {
  const auto work = detail::make_cached_matmul(context, kernel, 0);
  for (int worker = 0; worker < work->workers(); ++worker) {
    const auto tile = work->tile(worker);
    std::fill_n(tile.c, tile.rows * tile.columns, std::numeric_limits<float>::quiet_NaN());
  }
  work->enqueue(0);
  EXPECT_GE(check_tiles(*work), 1);
}

class CachedMatmulKernels : public CachedMatmul, public testing::WithParamInterface<const char*> {};

TEST_P(CachedMatmulKernels, Multiplies) {
  const CachedMatmulKernel* const kernel = find_cached_matmul(GetParam());
  if (kernel == nullptr) GTEST_SKIP() << "this machine does not run " << GetParam();
  EXPECT_STREQ(kernel->isa, GetParam());
  run_and_check(context_, *kernel);
  // The operands and the product fit the smallest innermost cache of the processors that have the instructions.
  const std::int64_t operands = kernel->depth * (kernel->rows + kernel->columns) * (kernel->is_bf16 ? 2 : 4);
  const std::int64_t bytes = operands + kernel->rows * kernel->columns * 4;
  EXPECT_LE(bytes, (std::string_view(GetParam()) == "amx_bf16" ? 48 : 32) << 10);
}

INSTANTIATE_TEST_SUITE_P(Levels, CachedMatmulKernels,
                         testing::Values("generic", "avx2", "avx512", "avx512_bf16", "amx_bf16"),
                         [](const auto& level) { return std::string(level.param); });

#if defined(WARPMETER_EMULATED_AMX)
TEST_F(CachedMatmul, MultipliesWithEmulatedTiles) {
  run_and_check(context_, detail::amx_emulated::kCachedMatmul);
}
#endif

std::atomic<std::int64_t> products{0};

TEST_F(CachedMatmul, AmountIsWhatWasDone) {
  constexpr CachedMatmulKernel kCounting = {
      "counting", false, 4, 8,
      16,         2,     0, [](const void*, const void*, float*, std::int64_t times) { products += times; }};
  const int before = num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const double flops : {0.0, 1e6}) {
      products = 0;
      const auto work = detail::make_cached_matmul(context_, kCounting, flops);
      EXPECT_EQ(work->workers(), threads);
      work->enqueue(0);
      EXPECT_EQ(work->amount(), 2.0 * 4 * 8 * 16 * 2 * static_cast<double>(products));
      EXPECT_GT(products, 0);
      if (flops > 0) {
        EXPECT_NEAR(work->amount(), threads * flops, 0.1 * threads * flops);
      }
      set_num_threads(threads + 1);
      EXPECT_THROW(work->enqueue(0), CheckError);
      set_num_threads(threads);
    }
  }
  set_num_threads(before);
}

TEST_F(CachedMatmul, IsTheOneOfThePath) {
  const auto fp32 = make_cached_matmul(context_, ComputePath::fp32);
  EXPECT_EQ(fp32->tile(0).storage, DType::fp32);
  EXPECT_EQ(fp32->variant_name(0), "operands in cache, " + std::string(name(cpu_isa())));
  EXPECT_THROW((void)make_cached_matmul(context_, ComputePath::tf32), CheckError);
  if (measured_path(ComputePath::half, Device::cpu()) == ComputePath::half) {
    EXPECT_EQ(make_cached_matmul(context_, ComputePath::half)->tile(0).storage, DType::bf16);
  } else {
    EXPECT_THROW((void)make_cached_matmul(context_, ComputePath::half), CheckError);
  }
  EXPECT_GT(allocator_.stats().harness, 0u);
  EXPECT_EQ(allocator_.stats().current.reserved, 0u);
}

TEST(Bf16Products, AreChosenByLevelAndVariable) {
  using detail::choose_bf16_products;
  using enum Bf16Products;
  for (const Bf16Products machine : {none, avx512_bf16, amx_bf16}) {
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::avx512, nullptr), machine);
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::avx512, "amx_bf16"), machine);
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::avx512, "avx512"), none);
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::avx2, "avx2"), none);
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::generic, "generic"), none);
    EXPECT_EQ(choose_bf16_products(machine, CpuIsa::avx2, nullptr), none);
  }
  EXPECT_EQ(choose_bf16_products(amx_bf16, CpuIsa::avx512, "avx512_bf16"), avx512_bf16);
  EXPECT_EQ(choose_bf16_products(avx512_bf16, CpuIsa::avx512, "avx512_bf16"), avx512_bf16);
  EXPECT_EQ(choose_bf16_products(none, CpuIsa::avx512, "avx512_bf16"), none);
}

}  // namespace
}  // namespace warpmeter::ceilings
