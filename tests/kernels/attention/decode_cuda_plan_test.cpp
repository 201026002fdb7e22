#include <gtest/gtest.h>

#include "kernels/attention/cuda/decode/params.hpp"

// What decoding on CUDA decides without a device.
namespace warpmeter::attention::cuda_decode {
namespace {

/// 1024 keys of 8 heads for 32 of queries, in a cluster of eight.
Params short_sequence() {
  Params p;
  p.query_element = p.cache_element = Element::bf16;
  p.head_dim = p.row_stride = 128;
  p.tokens = 1;
  p.rows = 4;
  p.uniform_length = 1024;
  p.block = 64;
  p.uniform_blocks = 16;
  p.parts = kShortParts;
  p.join = Join::cluster;
  return p;
}

TEST(DecodeCuda, ShortSequencesHaveTheirKernelWhereItsBlocksFit) {
  Params p = short_sequence();
  EXPECT_EQ(short_groups(p), 1);
  p.shape = DecodeBlock::small;  // a device with 99 KiB of shared memory a block
  EXPECT_EQ(short_groups(p), 0);
  p = short_sequence();
  p.uniform_blocks = 40;  // 320 keys a part: more than two groups a warp
  EXPECT_EQ(short_groups(p), 0);
}

TEST(DecodeCuda, WarpsOfABlock) {
  EXPECT_EQ(warps_of(DecodeBlock::usual, 256), 4);
  EXPECT_EQ(warps_of(DecodeBlock::wide, 128), 8);
  EXPECT_EQ(warps_of(DecodeBlock::small, 128), 4);
  EXPECT_EQ(warps_of(DecodeBlock::small, 256), 2);
}

}  // namespace
}  // namespace warpmeter::attention::cuda_decode
