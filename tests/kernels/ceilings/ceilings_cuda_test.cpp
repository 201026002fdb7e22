#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/ceilings/spin.hpp"
#include "kernels/runtime/event.hpp"
#include "tests/kernels/ceilings/check_workloads.hpp"

namespace warpmeter::ceilings {
namespace {

class CudaCeilings : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
    context_ = {stream_->view(), allocator_.get()};
  }
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
  Context context_;
};

// Bounds relative to the largest element of the result, for sums of 256 products: fp32 rounds each step to 2^-24, the
// operands of tf32 and bf16 are rounded to 2^-11 (tf32; bf16 ones are stored rounded), and bf16 results to 2^-9.
TEST_F(CudaCeilings, Fp32MatmulIsFp32) {
  check_matmul(context_, ComputePath::fp32, 256, 1e-6);
}
TEST_F(CudaCeilings, Tf32Matmul) {
  check_matmul(context_, ComputePath::tf32, 256, 1e-3);
}
TEST_F(CudaCeilings, HalfMatmul) {
  check_matmul(context_, ComputePath::half, 256, 0x1p-8);
}

TEST_F(CudaCeilings, CopyCopiesAndReadReadsEverything) {
  // Less than a tile, a tile and a bit, many tiles, more than the resident blocks take in one go.
  for (const std::size_t bytes :
       {std::size_t{4096}, std::size_t{69632}, std::size_t{3} << 20, (std::size_t{96} << 20) + 4096}) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    check_copy(context_, bytes);
    check_read(context_, bytes);
  }
}

TEST_F(CudaCeilings, TrafficReadsAndWritesWhatItSays) {
  check_traffic_of_many_mixes(context_, (std::size_t{3} << 20) + 200);
  // More than the resident blocks take in one go, both ways, and as a reduction has it.
  for (const auto& [read, written] : {std::pair<std::size_t, std::size_t>{96 << 20, 40'000'000},
                                      {40'000'000, 96 << 20},
                                      {96 << 20, 16384},
                                      {96 << 20, 96 << 20}}) {
    SCOPED_TRACE(testing::Message() << read << " bytes read, " << written << " written");
    check_traffic(context_, read, written);
  }
}

TEST_F(CudaCeilings, MemoryIsTheHarnesssAndGivenBack) {
  {
    const auto work = make_matmul(context_, ComputePath::half, 256);
    work->enqueue(0);
    synchronize(context_.stream);
    EXPECT_GT(allocator_->stats().harness, 0u);
    EXPECT_EQ(allocator_->stats().current.reserved, 0u);
  }
  EXPECT_EQ(allocator_->stats().harness, 0u);
}

TEST_F(CudaCeilings, SpinLastsAsLongAsAsked) {
  Event begin(Device::cuda()), end(Device::cuda());
  spin_for(1000, context_.stream);  // loads the kernel
  synchronize(context_.stream);
  for (const std::int64_t ns : {1'000'000, 20'000'000}) {
    begin.record(context_.stream);
    spin_for(ns, context_.stream);
    end.record(context_.stream);
    synchronize(context_.stream);
    const double expected_ms = static_cast<double>(ns) * 1e-6;
    EXPECT_NEAR(elapsed_ms(begin, end), expected_ms, 0.01 * expected_ms + 0.01);
  }
}

}  // namespace
}  // namespace warpmeter::ceilings
