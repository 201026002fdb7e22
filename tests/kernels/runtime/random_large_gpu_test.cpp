// More elements than 31 bits count, spot-checked against the CPU's fill of the same positions.

#include <cstring>
#include <vector>

#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/random.hpp"
#include "tests/kernels/runtime/gpu_test.hpp"

namespace warpmeter {
namespace {

using RandomLargeGpu = test::GpuTest;

TEST_F(RandomLargeGpu, MoreThan31BitsOfElements) {
  const std::int64_t count = (std::int64_t{1} << 32) + 4099;  // bf16: 8 GiB
  if (free_memory_bytes(gpu_) < (std::size_t{9} << 30)) GTEST_SKIP() << "less than 9 GiB of device memory free";
  CachingAllocator allocator(gpu_);
  const Context context{default_stream_, &allocator};
  const Tensor tensor(context, {count}, DType::bf16);
  tensor.fill_bytes(0xFF, default_stream_);
  fill_normal(tensor, 99, 7, default_stream_);
  const detail::RandomFill fill = detail::normal_fill(DType::bf16, 99, 7, 1.0f);
  const std::int64_t length = 4096;
  for (const std::int64_t first : {std::int64_t{0}, (std::int64_t{1} << 30) - 1000, (std::int64_t{1} << 31) - 2048,
                                   (std::int64_t{3} << 30) + 13, (std::int64_t{1} << 32) - 2048, count - length}) {
    std::vector<std::uint16_t> gpu(static_cast<std::size_t>(length));
    std::vector<std::uint16_t> cpu(static_cast<std::size_t>(length));
    copy_bytes(gpu.data(), Device::cpu(), tensor.data_as<std::uint16_t>() + first, gpu_, gpu.size() * 2,
               default_stream_);
    detail::random_fill_cpu(cpu.data(), static_cast<std::uint64_t>(first), length, fill);
    EXPECT_EQ(gpu, cpu) << first;
  }
}

}  // namespace
}  // namespace warpmeter
