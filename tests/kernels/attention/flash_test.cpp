#include <cstring>

#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/random.hpp"
#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(FlashCpu, DeviceKind::cpu, "flash");
WM_ATTENTION_CONFORMANCE(FlashTwoPassCpu, DeviceKind::cpu, "flash_two_pass");

using namespace attention;  // NOLINT

class ThreadCount {
 public:
  explicit ThreadCount(int threads) : previous_(num_threads()) { set_num_threads(threads); }
  ~ThreadCount() { set_num_threads(previous_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int previous_;
};

/// O, LSE, dQ, dK, dV of one run as bytes.
std::vector<std::vector<char>> results(const Implementation& implementation, const AttentionProblem& p) {
  CachingAllocator allocator(Device::cpu());
  const Context context{StreamView{}, &allocator};
  const auto query = [&] { return Tensor(context, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype); };
  const auto key = [&] { return Tensor(context, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype); };
  const Tensor q = query(), k = key(), v = key(), o = query(), d_o = query(), dq = query(), dk = key(), dv = key();
  const Tensor lse(context, {p.batch, p.num_heads, p.seq_len}, DType::fp32);
  std::uint64_t id = 0;
  for (const Tensor* tensor : {&q, &k, &v, &d_o}) fill_normal(*tensor, 11, id++, context.stream);
  for (const Tensor* tensor : {&o, &lse, &dq, &dk, &dv}) tensor->fill_bytes(0xFF, context.stream);
  const ForwardArguments forward{as_const(operand_bhsd(q)), as_const(operand_bhsd(k)), as_const(operand_bhsd(v)),
                                 operand_bhsd(o), lse.data_as<float>()};
  const auto saved = implementation.forward(context, p, forward, true);
  implementation.backward(context, p,
                          {forward.q, forward.k, forward.v, as_const(forward.o), as_const(operand_bhsd(d_o)),
                           forward.lse, operand_bhsd(dq), operand_bhsd(dk), operand_bhsd(dv)},
                          saved.get());
  std::vector<std::vector<char>> bytes;
  for (const Tensor* tensor : {&o, &lse, &dq, &dk, &dv}) {
    bytes.emplace_back(tensor->bytes());
    std::memcpy(bytes.back().data(), tensor->data(), tensor->bytes());
  }
  return bytes;
}

/// dQ is summed over key blocks that different threads compute, and the queries' blocks shrink as threads grow: neither
/// may show in the bits.
TEST(FlashCpu, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const bool causal : {true, false}) {
      AttentionProblem p;
      p.batch = 1;
      p.num_heads = 2;
      p.num_kv_heads = 1;
      p.seq_len = 300;
      p.kv_len = 333;
      p.head_dim = 40;
      p.dtype = dtype;
      p.causal = causal;
      for (const char* name : {"flash", "flash_two_pass"}) {
        const Implementation& implementation = *find_implementation(DeviceKind::cpu, name);
        std::vector<std::vector<char>> alone;
        {
          const ThreadCount threads(1);
          alone = results(implementation, p);
        }
        for (const int count : {2, 5, 16}) {
          const ThreadCount threads(count);
          EXPECT_EQ(results(implementation, p), alone) << name << " " << describe(p) << " threads " << count;
        }
      }
    }
  }
}

/// Sums of 65,536 terms keep five digits: a block's terms are summed before they meet the running sum.
TEST(FlashCpu, LongSumsKeepTheirDigits) {
  conformance::Case c;
  c.problem.causal = false;
  c.problem.head_dim = 16;
  for (const bool many_queries : {true, false}) {
    c.problem.seq_len = many_queries ? 65536 : 16;
    c.problem.kv_len = many_queries ? 16 : 65536;
    for (const char* name : {"flash", "flash_two_pass"}) {
      EXPECT_TRUE(conformance::run(conformance::Subject(DeviceKind::cpu, name), c)) << name;
    }
  }
}

/// A query with one visible key has P = 1 whatever its score: its share of every score gradient is exactly 0.
TEST(FlashCpu, OneKeyHasNoScoreGradient) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    AttentionProblem p;
    p.batch = 2;
    p.num_heads = 3;
    p.num_kv_heads = 3;
    p.seq_len = 37;
    p.kv_len = 1;
    p.head_dim = 72;
    p.dtype = dtype;
    p.causal = false;
    for (const char* name : {"flash", "flash_two_pass"}) {
      const auto bytes = results(*find_implementation(DeviceKind::cpu, name), p);
      for (const std::size_t gradient : {std::size_t{2}, std::size_t{3}}) {
        for (std::size_t i = 0; i < bytes[gradient].size(); i += size_of(dtype)) {
          float value = 0;
          if (dtype == DType::fp32) {
            std::memcpy(&value, bytes[gradient].data() + i, sizeof(value));
          } else {
            std::uint16_t bits = 0;
            std::memcpy(&bits, bytes[gradient].data() + i, sizeof(bits));
            value = (bits & 0x7FFF) == 0 ? 0.0f : 1.0f;
          }
          ASSERT_EQ(value, 0.0f) << name << " " << describe(p) << (gradient == 2 ? " dq" : " dk");
        }
      }
    }
  }
}

}  // namespace
}  // namespace warpmeter
