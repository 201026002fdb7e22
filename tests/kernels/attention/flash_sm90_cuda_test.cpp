#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/attention/flash_cuda.hpp"
#include "kernels/runtime/random.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

using namespace attention;               // NOLINT
using namespace attention::conformance;  // NOLINT

/// Hopper's forward over what its tiles make special. The general lists run it under `flash`.
class FlashSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (!subject.missing().empty()) GTEST_SKIP() << subject.missing();
    AttentionProblem p;
    p.dtype = DType::bf16;
    if (const auto reason = subject.implementation().unsupported(p, Pass::forward)) GTEST_SKIP() << *reason;
  }
  const Subject subject{flash_sm90_cuda()};
};

constexpr std::int64_t kHeadDims[] = {64, 80, 96, 128, 256};

TEST_F(FlashSm90, EveryTileEdge) {
  // Around 64 rows a warpgroup, 128 and 192 a block; 80, 128 and 176 keys a step; more and fewer queries than keys.
  const std::int64_t lengths[][2] = {{1, 1},     {1, 1000},  {1000, 1},  {63, 65},   {64, 64},   {65, 63},
                                     {127, 129}, {128, 128}, {129, 79},  {191, 80},  {192, 81},  {193, 175},
                                     {255, 176}, {256, 177}, {250, 250}, {300, 20},  {20, 300},  {385, 257},
                                     {577, 511}, {799, 3},   {3, 799},   {640, 320}, {320, 640}, {1023, 1024}};
  std::vector<Case> cases;
  int turn = 0;
  for (const std::int64_t head_dim : kHeadDims) {
    for (const auto& [queries, keys] : lengths) {
      for (const bool causal : {false, true}) {
        Case c;
        c.problem.batch = 1 + turn % 2;
        c.problem.num_heads = 4;
        c.problem.num_kv_heads = turn % 3 == 0 ? 4 : turn % 3 == 1 ? 2 : 1;
        c.problem.seq_len = queries;
        c.problem.kv_len = keys;
        c.problem.head_dim = head_dim;
        c.problem.dtype = turn % 2 == 0 ? DType::bf16 : DType::fp16;
        c.problem.causal = causal;
        c.layout = turn % 3 == 0 ? Layout::bshd : turn % 3 == 1 ? Layout::bhsd : Layout::padded;
        ++turn;
        cases.push_back(c);
      }
    }
  }
  run_all(subject, cases);
}

TEST_F(FlashSm90, ExtremeValues) {
  std::vector<Case> cases;
  for (const std::int64_t head_dim : kHeadDims) {
    for (const bool causal : {true, false}) {
      for (const Values values :
           {Values::large_scores, Values::negative_lse, Values::very_negative, Values::inexact_scores}) {
        for (const DType dtype : {DType::bf16, DType::fp16}) {
          Case c;
          c.problem.num_heads = c.problem.num_kv_heads = 2;
          c.problem.seq_len = 320;
          c.problem.kv_len = 448;
          c.problem.head_dim = head_dim;
          c.problem.dtype = dtype;
          c.problem.causal = causal;
          c.values = values;
          cases.push_back(c);
        }
      }
    }
  }
  run_all(subject, cases);
}

TEST_F(FlashSm90, UnseeingQueries) {
  check_unseeing_queries(subject);
}

TEST_F(FlashSm90, NanShows) {
  check_nan_shows(subject);
}

struct Operands {
  AttentionProblem problem;
  Context context;
  Tensor q, k, v, o, lse;
  Operands(const AttentionProblem& p, const Context& c)
      : problem(p),
        context(c),
        q(c, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype),
        k(c, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype),
        v(c, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype),
        o(c, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype),
        lse(c, {p.batch, p.num_heads, p.seq_len}, DType::fp32) {
    fill_normal(q, 1, 0, c.stream);
    fill_normal(k, 1, 1, c.stream);
    fill_normal(v, 1, 2, c.stream);
  }
  void forward(const Implementation& implementation) const {
    o.fill_bytes(0xff, context.stream);
    lse.fill_bytes(0xff, context.stream);
    static_cast<void>(implementation.forward(context, problem,
                                             {as_const(operand_bhsd(q)), as_const(operand_bhsd(k)),
                                              as_const(operand_bhsd(v)), operand_bhsd(o), lse.data_as<float>()},
                                             false));
  }
};

std::vector<std::uint16_t> copy_out(const void* device, std::int64_t elements) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(elements));
  EXPECT_EQ(cudaMemcpy(host.data(), device, host.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

TEST_F(FlashSm90, TheSameBitsFiftyTimes) {
  for (const std::int64_t head_dim : kHeadDims) {
    for (const bool causal : {false, true}) {
      AttentionProblem p;
      p.batch = 3;
      p.num_heads = p.num_kv_heads = 40;  // more items than a GPU has multiprocessors
      p.seq_len = 700;
      p.kv_len = 900;
      p.head_dim = head_dim;
      p.dtype = DType::bf16;
      p.causal = causal;
      const Operands operands(p, subject.context());
      operands.forward(subject.implementation());
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto first = copy_out(operands.o.data(), p.query_elements());
      const auto first_lse = copy_out(operands.lse.data(), 2 * p.lse_elements());
      for (int repeat = 0; repeat < 50; ++repeat) {
        operands.forward(subject.implementation());
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(copy_out(operands.o.data(), p.query_elements()), first) << describe(p) << ", repeat " << repeat;
        ASSERT_EQ(copy_out(operands.lse.data(), 2 * p.lse_elements()), first_lse) << describe(p);
      }
    }
  }
}

/// Queries and outputs of more than 2^31 elements, and more than 2^16 heads: the last head as if it stood alone.
TEST_F(FlashSm90, MoreThanTwoToTheThirtyOneElements) {
  AttentionProblem p;
  p.batch = 2;
  p.num_heads = 70000;
  p.num_kv_heads = 1;
  p.seq_len = 130;
  p.kv_len = 200;
  p.head_dim = 128;
  p.dtype = DType::bf16;
  ASSERT_GT(p.query_elements(), std::int64_t{1} << 31);
  const Operands all(p, subject.context());
  all.forward(subject.implementation());

  AttentionProblem one = p;
  one.batch = one.num_heads = 1;
  const Operands last(one, subject.context());
  const auto tail = [](const Tensor& tensor, const Tensor& like) {
    return static_cast<const char*>(tensor.data()) + tensor.bytes() - like.bytes();
  };
  // In the stream's order: behind the fills.
  const auto copy_tail = [&](const Tensor& from, const Tensor& to) {
    copy_bytes(to.data(), to.device(), tail(from, to), from.device(), to.bytes(), subject.context().stream);
  };
  copy_tail(all.q, last.q);
  copy_tail(all.k, last.k);
  copy_tail(all.v, last.v);
  last.forward(subject.implementation());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto alone = copy_out(last.o.data(), one.query_elements());
  EXPECT_EQ(copy_out(tail(all.o, last.o), one.query_elements()), alone);
  EXPECT_EQ(copy_out(tail(all.lse, last.lse), 2 * one.lse_elements()),
            copy_out(last.lse.data(), 2 * one.lse_elements()));
  EXPECT_NE(copy_out(all.o.data(), one.query_elements()), alone) << "the first head has inputs of its own";
}

/// Strides beyond 2^31 elements, bytes beyond 2^32: few heads, far apart in one block of memory, give what they give
/// side by side.
TEST_F(FlashSm90, HeadsGibibytesApart) {
  constexpr std::int64_t kHeadStride = (std::int64_t{1} << 30) + (1 << 20);
  constexpr std::int64_t kBatchStride = (std::int64_t{1} << 31) + (1 << 20);
  constexpr std::int64_t kPlace = 1 << 18;  // of q, k, v and o in a head's part
  const Context context = subject.context();
  const Tensor far(context, {kBatchStride + kHeadStride + 4 * kPlace}, DType::bf16);
  for (const std::int64_t head_dim : kHeadDims) {
    for (const bool causal : {false, true}) {
      AttentionProblem p;
      p.batch = p.num_heads = p.num_kv_heads = 2;
      p.seq_len = 130;
      p.kv_len = 200;
      p.head_dim = head_dim;
      p.dtype = DType::bf16;
      p.causal = causal;
      ASSERT_LE(p.kv_len * p.head_dim, kPlace);
      const Operands near(p, context);
      near.forward(subject.implementation());
      const auto place = [&](int operand, std::int64_t batch, std::int64_t head) {
        return far.data_as<std::uint16_t>() + batch * kBatchStride + head * kHeadStride + operand * kPlace;
      };
      const auto each_head = [&](const Tensor& tensor, int operand, const auto& body) {
        const std::int64_t elements = tensor.elements() / 4;
        for (int i = 0; i < 4; ++i) {
          body(tensor.data_as<std::uint16_t>() + i * elements, place(operand, i / 2, i % 2), elements);
        }
      };
      int operand = 0;
      for (const Tensor* const tensor : {&near.q, &near.k, &near.v}) {
        each_head(*tensor, operand++, [&](const void* from, void* to, std::int64_t elements) {
          copy_bytes(to, far.device(), from, far.device(), static_cast<std::size_t>(2 * elements), context.stream);
        });
      }
      each_head(near.o, 3, [&](const void* /*near*/, void* to, std::int64_t elements) {
        fill_bytes(to, far.device(), 0xff, static_cast<std::size_t>(2 * elements), context.stream);
      });
      const Tensor lse(context, {4 * p.seq_len}, DType::fp32);
      const auto view = [&](int which) { return Operand{place(which, 0, 0), kBatchStride, kHeadStride, p.head_dim}; };
      static_cast<void>(subject.implementation().forward(
          context, p, {as_const(view(0)), as_const(view(1)), as_const(view(2)), view(3), lse.data_as<float>()}, false));
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      each_head(near.o, 3, [&](const void* expected, const void* got, std::int64_t elements) {
        EXPECT_EQ(copy_out(got, elements), copy_out(expected, elements)) << describe(p);
      });
      EXPECT_EQ(copy_out(lse.data(), 2 * p.lse_elements()), copy_out(near.lse.data(), 2 * p.lse_elements()));
    }
  }
}

/// Many launches in flight, none waiting for another's counter.
TEST_F(FlashSm90, LaunchesFollowEachOther) {
  AttentionProblem p;
  p.batch = 2;
  p.num_heads = p.num_kv_heads = 8;
  p.seq_len = p.kv_len = 130;
  p.head_dim = 64;
  p.dtype = DType::fp16;
  const Operands operands(p, subject.context());
  operands.forward(subject.implementation());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto first = copy_out(operands.o.data(), p.query_elements());
  for (int i = 0; i < 3000; ++i) operands.forward(subject.implementation());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(copy_out(operands.o.data(), p.query_elements()), first);
}

TEST_F(FlashSm90, SaysWhatItDoesNotTake) {
  AttentionProblem p;
  p.dtype = DType::fp32;
  EXPECT_EQ(subject.implementation().unsupported(p, Pass::forward).value_or(""), "flash_sm90 takes bf16 and fp16");
  p.dtype = DType::bf16;
  p.head_dim = 72;
  EXPECT_EQ(subject.implementation().unsupported(p, Pass::forward).value_or(""),
            "flash_sm90 takes head dims 64, 80, 96, 128 and 256");
  p.head_dim = 128;
  EXPECT_EQ(flash_cuda().kernel(p, Pass::forward), "flash_sm90_d128_causal_bf16");
  EXPECT_EQ(flash_sm80_cuda().kernel(p, Pass::forward).substr(0, 10), "flash_sm80");
}

}  // namespace
}  // namespace warpmeter
