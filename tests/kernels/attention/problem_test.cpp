#include "kernels/attention/problem.hpp"

#include <gtest/gtest.h>

namespace warpmeter::attention {
namespace {

AttentionProblem shape(std::int64_t seq_len, std::int64_t kv_len, bool causal) {
  AttentionProblem p;
  p.seq_len = seq_len;
  p.kv_len = kv_len;
  p.causal = causal;
  return p;
}

TEST(AttentionProblem, VisibleKeysAndPairsMatchTheMaskCountedOut) {
  for (std::int64_t sq = 1; sq <= 9; ++sq) {
    for (std::int64_t sk = 1; sk <= 9; ++sk) {
      for (const bool causal : {true, false}) {
        const AttentionProblem p = shape(sq, sk, causal);
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < sq; ++i) {
          std::int64_t visible = 0;
          for (std::int64_t j = 0; j < sk; ++j) visible += !causal || j <= i + sk - sq ? 1 : 0;
          EXPECT_EQ(p.visible_keys(i), visible) << describe(p) << " row " << i;
          pairs += visible;
        }
        EXPECT_EQ(p.visible_pairs(), pairs) << describe(p);
      }
    }
  }
}

TEST(AttentionProblem, UnseeingQueriesAreThoseWithoutVisibleKeys) {
  for (const bool causal : {true, false}) {
    for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{5, 5}, {7, 3}, {3, 7}, {9, 1}}) {
      AttentionProblem p;
      p.seq_len = queries;
      p.kv_len = keys;
      p.causal = causal;
      std::int64_t count = 0;
      while (count < queries && p.visible_keys(count) == 0) ++count;
      EXPECT_EQ(p.unseeing_queries(), count) << queries << " " << keys << " " << causal;
    }
  }
}

TEST(AttentionProblem, PairsAreExactAtTheLargestLengths) {
  const std::int64_t n = std::int64_t{1} << 31;
  EXPECT_EQ(shape(n, n, true).visible_pairs(), 2305843010287435776);  // n (n + 1) / 2
  EXPECT_EQ(shape(n, n, false).visible_pairs(), std::int64_t{1} << 62);
  EXPECT_EQ(shape(n - 1, n, true).visible_pairs(), 2305843010287435775);  // all but the one of a first row
  EXPECT_EQ(shape(n, 1, true).visible_pairs(), 1);
}

TEST(AttentionProblem, WorkAndTraffic) {
  AttentionProblem p = shape(3, 5, true);  // rows see 3, 4, 5 keys
  p.batch = 2;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  p.head_dim = 8;
  p.dtype = DType::bf16;
  EXPECT_EQ(p.visible_pairs(), 12);
  EXPECT_EQ(p.forward_flops(), 4.0 * 2 * 4 * 12 * 8);
  EXPECT_EQ(p.backward_flops(), 10.0 * 2 * 4 * 12 * 8);
  EXPECT_EQ(p.query_elements(), 192);
  EXPECT_EQ(p.kv_elements(), 160);
  EXPECT_EQ(p.lse_elements(), 24);
  EXPECT_EQ(p.forward_bytes(), 2 * (2 * 192 + 2 * 160) + 4 * 24);
  EXPECT_EQ(p.backward_bytes(), 2 * (4 * 192 + 4 * 160) + 4 * 24);
  p.dtype = DType::tf32;  // stored as fp32
  EXPECT_EQ(p.forward_bytes(), 4 * (2 * 192 + 2 * 160) + 4 * 24);
  EXPECT_EQ(p.group_size(), 2);
  p.head_dim = 64;
  EXPECT_EQ(p.scale(), 0.125);
}

TEST(AttentionProblem, WhatIsOutOfRangeIsNamed) {
  const AttentionProblem good = shape(16, 16, true);
  EXPECT_EQ(invalid_reason(good), "");
  const auto reason = [&](auto change) {
    AttentionProblem p = good;
    change(p);
    return invalid_reason(p);
  };
  EXPECT_EQ(reason([](auto& p) { p.batch = 0; }), "batch must be between 1 and 2147483648, not 0");
  EXPECT_EQ(reason([](auto& p) { p.seq_len = -5; }), "seq_len must be between 1 and 2147483648, not -5");
  EXPECT_EQ(reason([](auto& p) { p.kv_len = 2147483649; }), "kv_len must be between 1 and 2147483648, not 2147483649");
  EXPECT_EQ(reason([](auto& p) { p.head_dim = 257; }), "head_dim must be between 1 and 256, not 257");
  EXPECT_EQ(reason([](auto& p) { p.head_dim = 256; }), "");
  EXPECT_EQ(reason([](auto& p) { p.num_heads = 0; }), "num_heads must be between 1 and 2147483648, not 0");
  EXPECT_EQ(reason([](auto& p) { p.num_heads = 6, p.num_kv_heads = 4; }), "num_kv_heads (4) must divide num_heads (6)");
  EXPECT_EQ(reason([](auto& p) { p.num_kv_heads = 2; }), "num_kv_heads (2) must divide num_heads (1)");
  EXPECT_EQ(reason([](auto& p) { p.dtype = DType::int32; }), "dtype must be fp32, tf32, bf16 or fp16, not int32");
  EXPECT_EQ(reason([](auto& p) { p.batch = p.seq_len = p.kv_len = std::int64_t{1} << 31; }),
            "batch x num_heads x seq_len x kv_len is too large to count");
}

TEST(AttentionProblem, DescribesItself) {
  AttentionProblem p = shape(1024, 2048, true);
  p.batch = 8;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  EXPECT_EQ(describe(p), "b8 h4/2 s1024/2048 d64 fp32 causal");
  p.causal = false;
  p.deterministic = true;
  p.dtype = DType::fp16;
  EXPECT_EQ(describe(p), "b8 h4/2 s1024/2048 d64 fp16 deterministic");
}

TEST(AttentionOperand, StridesOfBothLayouts) {
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const Tensor tensor(context, {2, 3, 5, 7}, DType::fp32);
  float* base = tensor.data_as<float>();
  const Operand heads_first = operand_bhsd(tensor);  // (batch, heads, rows, head_dim)
  EXPECT_EQ(heads_first.row<float>(1, 2, 4), base + 1 * 105 + 2 * 35 + 4 * 7);
  const Operand rows_first = operand_bshd(tensor);  // (batch, rows, heads, head_dim)
  EXPECT_EQ(rows_first.row<float>(1, 4, 2), base + 1 * 105 + 2 * 35 + 4 * 7);
  EXPECT_EQ(as_const(rows_first).row<float>(1, 4, 2), base + 1 * 105 + 2 * 35 + 4 * 7);
}

}  // namespace
}  // namespace warpmeter::attention
