// The random fill on the GPU: the CPU's bits.

#include <cstring>
#include <string>
#include <vector>

#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/random.hpp"
#include "tests/kernels/runtime/gpu_test.hpp"

namespace warpmeter {
namespace {

using detail::RandomFill;

class RandomGpu : public test::GpuTest {
 protected:
  std::vector<RandomFill> all_fills(std::uint64_t seed, std::uint64_t stream_id) const {
    return {
        detail::normal_fill(DType::fp32, seed, stream_id, 1.0f),
        detail::normal_fill(DType::tf32, seed, stream_id, 0.02f),
        detail::normal_fill(DType::bf16, seed, stream_id, 1.0f),
        detail::normal_fill(DType::fp16, seed, stream_id, 3.0f),
        detail::normal_fill(DType::fp16, seed, stream_id, 2e-6f),  // subnormals
        detail::uniform_fill(DType::fp32, seed, stream_id, -1.0f, 1.0f),
        detail::uniform_fill(DType::bf16, seed, stream_id, 0.0f, 1.0f),
        detail::uniform_fill(DType::fp16, seed, stream_id, -2.0f, 5.0f),
        detail::integers_fill(DType::int32, seed, stream_id, 10000),
        detail::integers_fill(DType::int64, seed, stream_id, std::int64_t{1} << 62),
    };
  }

  /// `count` elements written `shift` elements behind an aligned address, with guards around them.
  std::vector<unsigned char> on_gpu(CachingAllocator& allocator, const RandomFill& fill, std::uint64_t first,
                                    std::int64_t count, std::size_t shift) {
    const std::size_t element = size_of(fill.dtype);
    const std::size_t bytes = (static_cast<std::size_t>(count) + shift + 8) * element;
    auto* const block = static_cast<unsigned char*>(allocator.allocate(bytes, default_stream_));
    fill_bytes(block, gpu_, 0xEE, bytes, default_stream_);
    detail::random_fill_cuda(block + shift * element, first, count, fill, default_stream_);
    std::vector<unsigned char> host(bytes);
    copy_bytes(host.data(), Device::cpu(), block, gpu_, bytes, default_stream_);
    allocator.free(block);
    for (std::size_t i = 0; i < bytes; ++i) {
      const bool guard = i < shift * element || i >= (shift + static_cast<std::size_t>(count)) * element;
      if (guard && host[i] != 0xEE) {
        ADD_FAILURE() << "wrote outside its range at byte " << i;
        break;
      }
    }
    const auto begin = host.begin() + static_cast<std::ptrdiff_t>(shift * element);
    return {begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * element)};
  }
};

std::vector<unsigned char> on_cpu(const RandomFill& fill, std::uint64_t first, std::int64_t count) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * size_of(fill.dtype));
  detail::random_fill_cpu(bytes.data(), first, count, fill);
  return bytes;
}

TEST_F(RandomGpu, EveryTypeAndDistributionHasTheCpusBits) {
  CachingAllocator allocator(gpu_);
  for (const RandomFill& fill : all_fills(0x9e3779b97f4a7c15, 17)) {
    const std::int64_t count = 10000019;
    const auto gpu = on_gpu(allocator, fill, 0, count, 0);
    const auto cpu = on_cpu(fill, 0, count);
    EXPECT_TRUE(gpu == cpu) << name(fill.dtype) << " " << static_cast<int>(fill.distribution);
  }
}

TEST_F(RandomGpu, AnyPieceAtAnyAddress) {
  CachingAllocator allocator(gpu_);
  for (const RandomFill& fill : all_fills(3, 4)) {
    for (const std::uint64_t first : {0, 1, 2, 3, 4, 5, 1021}) {
      for (const std::int64_t count : {1, 2, 3, 4, 7, 1000}) {
        for (const std::size_t shift : {0, 1, 2, 3}) {
          ASSERT_EQ(on_gpu(allocator, fill, first, count, shift), on_cpu(fill, first, count))
              << name(fill.dtype) << " " << first << " " << count << " " << shift;
        }
      }
    }
  }
}

TEST_F(RandomGpu, CountersAre64Bits) {
  CachingAllocator allocator(gpu_);
  for (const RandomFill& fill : all_fills(5, std::uint64_t{1} << 40)) {
    for (const std::uint64_t first :
         {(std::uint64_t{1} << 32) - 70, (std::uint64_t{1} << 34) - 70, (std::uint64_t{1} << 62) + 7}) {
      ASSERT_EQ(on_gpu(allocator, fill, first, 1000, 0), on_cpu(fill, first, 1000)) << name(fill.dtype) << " " << first;
    }
  }
}

TEST_F(RandomGpu, TensorsOnBothDevicesAreEqual) {
  CachingAllocator gpu_allocator(gpu_);
  CachingAllocator cpu_allocator(Device::cpu());
  const Stream stream(gpu_);
  const Context gpu{stream, &gpu_allocator};
  const Context cpu{host_, &cpu_allocator};
  for (const DType dtype : {DType::fp32, DType::tf32, DType::bf16, DType::fp16}) {
    const Tensor a(gpu, {7, 12345}, dtype);
    const Tensor b(cpu, {7, 12345}, dtype);
    fill_normal(a, 1, 2, stream, 0.5f);
    fill_normal(b, 1, 2, host_, 0.5f);
    EXPECT_EQ(std::memcmp(a.to(cpu).data(), b.data(), b.bytes()), 0) << name(dtype);
    fill_uniform(a, 1, 3, stream, -1.0f, 2.0f);
    fill_uniform(b, 1, 3, host_, -1.0f, 2.0f);
    EXPECT_EQ(std::memcmp(a.to(cpu).data(), b.data(), b.bytes()), 0) << name(dtype);
  }
  const Tensor a(gpu, {999}, DType::int32);
  const Tensor b(cpu, {999}, DType::int32);
  fill_integers(a, 1, 2, stream, 10000);
  fill_integers(b, 1, 2, host_, 10000);
  EXPECT_EQ(std::memcmp(a.to(cpu).data(), b.data(), b.bytes()), 0);
}

}  // namespace
}  // namespace warpmeter
