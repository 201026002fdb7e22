// Every operation on the CPU against its fp64 reference, in each type, at odd and even widths.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/embedding.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/swiglu.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tests/kernels/layers/reference.hpp"

namespace warpmeter::layers {
namespace {

using testing::DeviceArray;
using testing::near;
using testing::normal;
using testing::stored;
using testing::Tokens;
using testing::Values;

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::int64_t kWidths[] = {1, 5, 16, 37, 200};

class Operations : public ::testing::Test {
 protected:
  testing::HostContext host_;
  Context context_ = host_.context();

  [[nodiscard]] DeviceArray array(const Values& values, DType dtype) { return {context_, values, dtype}; }
  [[nodiscard]] DeviceArray empty(std::int64_t count, DType dtype) { return {context_, count, dtype}; }
  [[nodiscard]] DeviceArray whole(const Tokens& tokens) {
    return {context_, Values(tokens.begin(), tokens.end()), DType::int32};
  }
};

TEST_F(Operations, RmsNormForwardAndBackward) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : kWidths) {
      const std::int64_t rows = 67;
      const Values x = stored(normal(rows * width, 1), dtype), addend = stored(normal(rows * width, 2), dtype);
      const Values weight = stored(normal(width, 3), dtype), d_out = stored(normal(rows * width, 4), dtype);
      const DeviceArray px = array(x, dtype), pa = array(addend, dtype), pw = array(weight, dtype);
      const DeviceArray out = empty(rows * width, dtype), sum = empty(rows * width, dtype);
      const DeviceArray inv_rms = empty(rows, DType::fp32);
      rmsnorm_forward(context_, {.rows = rows,
                                 .width = width,
                                 .dtype = dtype,
                                 .x = px.data(),
                                 .addend = pa.data(),
                                 .sum = sum.data(),
                                 .weight = pw.data(),
                                 .out = out.data(),
                                 .inv_rms = inv_rms.as<float>()});
      Values s(x.size());
      for (std::size_t i = 0; i < s.size(); ++i) s[i] = x[i] + addend[i];
      EXPECT_TRUE(near(sum.values(), s, dtype, 1e-7));
      s = sum.values();  // what is normalized is what was stored
      const testing::RmsNormResult expected = testing::rmsnorm(s, weight, 1e-5);
      EXPECT_TRUE(near(out.values(), expected.out, dtype));
      EXPECT_TRUE(near(inv_rms.values(), expected.inv_rms, DType::fp32));

      const Values residual = stored(normal(rows * width, 5), dtype);
      testing::RmsNormGradients gradients = testing::rmsnorm_gradients(s, weight, 1e-5, d_out);
      for (const DType gradient_dtype : {DType::fp32, dtype}) {
        const DeviceArray pd = array(d_out, dtype), pr = array(residual, dtype), d_x = empty(rows * width, dtype);
        const DeviceArray d_weight = array(Values(static_cast<std::size_t>(width), 2.0), gradient_dtype);
        RmsNormBackward backward{.rows = rows,
                                 .width = width,
                                 .dtype = dtype,
                                 .gradient_dtype = gradient_dtype,
                                 .s = sum.data(),
                                 .weight = pw.data(),
                                 .inv_rms = inv_rms.as<float>(),
                                 .d_out = pd.data(),
                                 .d_x = d_x.data(),
                                 .d_weight = d_weight.data()};
        const DeviceArray workspace =
            empty(static_cast<std::int64_t>(workspace_bytes(Device::cpu(), backward) + 3) / 4, DType::fp32);
        backward.workspace = workspace.data();
        rmsnorm_backward(context_, backward);
        // A row of one element is nearly constant under the norm: its gradient is what two large terms leave.
        EXPECT_TRUE(near(d_x.values(), gradients.d_s, dtype, width == 1 ? 2e-5 : 2e-6));
        EXPECT_TRUE(near(d_weight.values(), gradients.d_weight, gradient_dtype));

        backward.accumulate = true;
        backward.d_residual = pr.data();
        backward.d_x = pd.data();  // in place
        const Values before = d_weight.values();
        rmsnorm_backward(context_, backward);
        Values d_s = gradients.d_s, total = gradients.d_weight;
        for (std::size_t i = 0; i < d_s.size(); ++i) d_s[i] += residual[i];
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += before[i];
        EXPECT_TRUE(near(pd.values(), d_s, dtype));
        EXPECT_TRUE(near(d_weight.values(), total, gradient_dtype));
      }
    }
  }
}

TEST_F(Operations, RopeTurnsPairsOfQAndK) {
  const std::int64_t rows = 10, seq_len = 5, heads = 3;
  for (const DType dtype : kTypes) {
    for (const std::int64_t head_dim : {2, 6, 64, 80}) {
      const std::int64_t width = heads * head_dim, stride = 3 * width;  // q, k, v side by side
      const Values packed = stored(normal(rows * stride, 1), dtype);
      const DeviceArray in = array(packed, dtype);
      const std::vector<float> table = rope_table(seq_len, head_dim);
      for (const bool inverse : {false, true}) {
        const DeviceArray out = array(packed, dtype);  // in place
        auto* base = static_cast<char*>(out.data());
        const std::size_t k_offset = static_cast<std::size_t>(width) * size_of(dtype);
        rope(context_, {.rows = rows,
                        .seq_len = seq_len,
                        .heads = heads,
                        .head_dim = head_dim,
                        .dtype = dtype,
                        .inverse = inverse,
                        .table = table.data(),
                        .q_in = base,
                        .k_in = base + k_offset,
                        .in_stride = stride,
                        .q_out = base,
                        .k_out = base + k_offset,
                        .out_stride = stride});
        Values expected = packed;
        for (std::int64_t part = 0; part < 2; ++part) {
          Values x;
          for (std::int64_t row = 0; row < rows; ++row) {
            const auto begin = packed.begin() + row * stride + part * width;
            x.insert(x.end(), begin, begin + width);
          }
          const Values turned = testing::rope(x, rows, seq_len, heads, head_dim, inverse);
          for (std::int64_t row = 0; row < rows; ++row) {
            std::copy_n(turned.begin() + row * width, width, expected.begin() + row * stride + part * width);
          }
        }
        EXPECT_TRUE(near(out.values(), expected, dtype, 1e-6)) << head_dim << (inverse ? " back" : "");
      }
    }
  }
}

TEST_F(Operations, SwigluForwardAndBackward) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : kWidths) {
      const std::int64_t rows = 33, stride = 2 * width;
      const Values packed = stored(normal(rows * stride, 1, 4), dtype), d_out = stored(normal(rows * width, 2), dtype);
      Values gate, up;
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto begin = packed.begin() + row * stride;
        gate.insert(gate.end(), begin, begin + width);
        up.insert(up.end(), begin + width, begin + stride);
      }
      const DeviceArray in = array(packed, dtype), out = empty(rows * width, dtype), pd = array(d_out, dtype);
      auto* base = static_cast<char*>(in.data());
      const std::size_t up_offset = static_cast<std::size_t>(width) * size_of(dtype);
      swiglu_forward(context_, {.rows = rows,
                                .width = width,
                                .dtype = dtype,
                                .gate = base,
                                .up = base + up_offset,
                                .in_stride = stride,
                                .out = out.data()});
      const Values expected = testing::swiglu(gate, up);
      EXPECT_TRUE(near(out.values(), expected, dtype));

      const DeviceArray again = empty(rows * width, dtype);
      swiglu_backward(context_, {.rows = rows,
                                 .width = width,
                                 .dtype = dtype,
                                 .gate = base,
                                 .up = base + up_offset,
                                 .in_stride = stride,
                                 .d_out = pd.data(),
                                 .d_gate = base,
                                 .d_up = base + up_offset,
                                 .d_stride = stride,
                                 .out = again.data()});
      const testing::SwigluGradients gradients = testing::swiglu_gradients(gate, up, d_out);
      Values d_packed;
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto g = gradients.d_gate.begin() + row * width, u = gradients.d_up.begin() + row * width;
        d_packed.insert(d_packed.end(), g, g + width);
        d_packed.insert(d_packed.end(), u, u + width);
      }
      EXPECT_TRUE(near(in.values(), d_packed, dtype));
      EXPECT_EQ(again.bytes(), out.bytes());
    }
  }
}

TEST_F(Operations, SwigluOfExtremes) {
  const Values gate = {-1000, -100, 0, 100, 1000}, up = {1, 1, 1, 1, 1};
  const DeviceArray pg = array(gate, DType::fp32), pu = array(up, DType::fp32), out = empty(5, DType::fp32);
  swiglu_forward(context_,
                 {.rows = 1, .width = 5, .gate = pg.data(), .up = pu.data(), .in_stride = 5, .out = out.data()});
  EXPECT_TRUE(near(out.values(), {{0, 0, 0, 100, 1000}}, DType::fp32));
  swiglu_backward(context_, {.rows = 1,
                             .width = 5,
                             .gate = pg.data(),
                             .up = pu.data(),
                             .in_stride = 5,
                             .d_out = pu.data(),
                             .d_gate = pg.data(),
                             .d_up = out.data(),
                             .d_stride = 5});
  EXPECT_TRUE(near(pg.values(), {{0, 0, 0.5, 1, 1}}, DType::fp32));
}

TEST_F(Operations, ElementwiseAsAnEagerFramework) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t count : {1, 31, 9001}) {
      const Values a = stored(normal(count, 1, 2), dtype), b = stored(normal(count, 2), dtype);
      const DeviceArray pa = array(a, dtype), pb = array(b, dtype), out = empty(count, dtype);
      const auto run = [&](ElementwiseOperation operation) {
        elementwise(context_, {.operation = operation,
                               .count = count,
                               .dtype = dtype,
                               .a = pa.data(),
                               .b = pb.data(),
                               .out = out.data()});
        return out.values();
      };
      Values sum(a.size()), product(a.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        sum[i] = a[i] + b[i];
        product[i] = a[i] * b[i];
      }
      EXPECT_TRUE(near(run(ElementwiseOperation::add), sum, dtype));
      EXPECT_TRUE(near(run(ElementwiseOperation::multiply), product, dtype));
      EXPECT_TRUE(near(run(ElementwiseOperation::silu), testing::silu(a), dtype));
      const Values ones(a.size(), 1.0);
      EXPECT_TRUE(near(run(ElementwiseOperation::silu_backward), testing::swiglu_gradients(a, ones, b).d_gate, dtype));
      for (const DType other : kTypes) {
        const DeviceArray converted = empty(count, other);
        convert(context_,
                {.count = count, .in_dtype = dtype, .out_dtype = other, .in = pa.data(), .out = converted.data()});
        EXPECT_EQ(converted.values(), stored(a, other)) << name(dtype) << " to " << name(other);
      }
    }
  }
}

TEST_F(Operations, CrossEntropyBothWays) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t vocab : {1, 7, 1000}) {
      const std::int64_t rows = 41;
      const Values logits = stored(normal(rows * vocab, 1, 3), dtype);
      Tokens targets;
      for (std::int64_t row = 0; row < rows; ++row) targets.push_back(static_cast<std::int32_t>(row * 13 % vocab));
      testing::CrossEntropyResult expected = testing::cross_entropy(logits, vocab, targets);
      const DeviceArray pl = array(logits, dtype), pt = whole(targets);
      const DeviceArray lse = empty(rows, DType::fp32), losses = empty(rows, DType::fp32);
      cross_entropy_forward(context_, {.rows = rows,
                                       .vocab = vocab,
                                       .dtype = dtype,
                                       .logits = pl.data(),
                                       .stride = vocab,
                                       .targets = pt.as<std::int32_t>(),
                                       .lse = lse.as<float>(),
                                       .losses = losses.as<float>()});
      EXPECT_TRUE(near(lse.values(), expected.lse, DType::fp32));
      EXPECT_TRUE(near(losses.values(), expected.losses, DType::fp32));

      const DeviceArray eager = empty(rows * vocab, DType::fp32), eager_losses = empty(rows, DType::fp32);
      log_softmax_forward(
          context_, {.rows = rows, .vocab = vocab, .dtype = dtype, .logits = pl.data(), .out = eager.as<float>()});
      nll_forward(context_, {.rows = rows,
                             .vocab = vocab,
                             .log_probabilities = eager.as<float>(),
                             .targets = pt.as<std::int32_t>(),
                             .losses = eager_losses.as<float>()});
      EXPECT_TRUE(near(eager_losses.values(), expected.losses, DType::fp32));

      StepState state;
      state.loss_scale = 64;
      const float scale = 1.0f / static_cast<float>(rows);
      for (double& value : expected.d_logits) value *= 64.0 / static_cast<double>(rows);
      const DeviceArray d_eager = empty(rows * vocab, dtype);
      log_softmax_backward(context_, {.rows = rows,
                                      .vocab = vocab,
                                      .dtype = dtype,
                                      .log_probabilities = eager.as<float>(),
                                      .targets = pt.as<std::int32_t>(),
                                      .scale = scale,
                                      .state = &state,
                                      .d_logits = d_eager.data()});
      EXPECT_TRUE(near(d_eager.values(), expected.d_logits, dtype, 3e-6));
      const DeviceArray at_once = array(logits, dtype), at_once_losses = empty(rows, DType::fp32);
      cross_entropy(context_, {.rows = rows,
                               .vocab = vocab,
                               .dtype = dtype,
                               .logits = at_once.data(),
                               .stride = vocab,
                               .targets = pt.as<std::int32_t>(),
                               .losses = at_once_losses.as<float>(),
                               .scale = scale,
                               .state = &state});
      EXPECT_EQ(at_once_losses.bytes(), losses.bytes());
      cross_entropy_backward(context_, {.rows = rows,
                                        .vocab = vocab,
                                        .dtype = dtype,
                                        .logits = pl.data(),
                                        .stride = vocab,
                                        .targets = pt.as<std::int32_t>(),
                                        .lse = lse.as<float>(),
                                        .scale = scale,
                                        .state = &state,
                                        .d_logits = pl.data()});
      EXPECT_TRUE(near(pl.values(), expected.d_logits, dtype, 3e-6));
      EXPECT_EQ(at_once.bytes(), pl.bytes());

      const DeviceArray average = empty(1, DType::fp32);
      mean(context_, {.count = rows, .values = losses.as<float>(), .out = average.as<float>()});
      double sum = 0;
      for (const double loss : expected.losses) sum += loss;
      EXPECT_TRUE(near(average.values(), {{sum / static_cast<double>(rows)}}, DType::fp32, 1e-6));
    }
  }
}

TEST_F(Operations, EmbeddingForwardAndBackward) {
  const std::int64_t rows = 90, vocab = 23;
  Tokens tokens;
  for (std::int64_t row = 0; row < rows; ++row) tokens.push_back(static_cast<std::int32_t>(row * row % (vocab - 3)));
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : {1, 40, 700}) {
      const Values table = stored(normal(vocab * width, 1), dtype), d_out = stored(normal(rows * width, 2), dtype);
      const DeviceArray pt = whole(tokens), ptable = array(table, dtype), out = empty(rows * width, dtype);
      embedding_forward(context_, {.rows = rows,
                                   .width = width,
                                   .vocab = vocab,
                                   .dtype = dtype,
                                   .tokens = pt.as<std::int32_t>(),
                                   .table = ptable.data(),
                                   .out = out.data()});
      EXPECT_EQ(out.values(), testing::embedding(table, width, tokens));
      for (const DType gradient_dtype : {DType::fp32, dtype}) {
        const DeviceArray pd = array(d_out, dtype), d_table = empty(vocab * width, gradient_dtype);
        EmbeddingBackward backward{.rows = rows,
                                   .width = width,
                                   .vocab = vocab,
                                   .dtype = dtype,
                                   .gradient_dtype = gradient_dtype,
                                   .tokens = pt.as<std::int32_t>(),
                                   .d_out = pd.data(),
                                   .d_table = d_table.data()};
        const DeviceArray workspace =
            empty(static_cast<std::int64_t>(workspace_bytes(Device::cpu(), backward) + 3) / 4, DType::fp32);
        backward.workspace = workspace.data();
        embedding_backward(context_, backward);
        Values expected = testing::embedding_gradient(d_out, width, tokens, vocab);
        EXPECT_TRUE(near(d_table.values(), expected, gradient_dtype));
        const Values before = d_table.values();
        backward.accumulate = true;
        embedding_backward(context_, backward);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
        EXPECT_TRUE(near(d_table.values(), expected, gradient_dtype));
      }
    }
  }
}

TEST_F(Operations, TokenOutsideTheVocabularyIsCaught) {
  const DeviceArray tokens = whole({0, 3}), table = array(normal(6, 1), DType::fp32), out = empty(4, DType::fp32);
  EXPECT_THROW(embedding_forward(context_, {.rows = 2,
                                            .width = 2,
                                            .vocab = 3,
                                            .tokens = tokens.as<std::int32_t>(),
                                            .table = table.data(),
                                            .out = out.data()}),
               CheckError);
}

TEST_F(Operations, MatmulEveryTransposeTypeAndStride) {
  const auto product = make_matmul(context_);
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const Shape shape : {Shape{1, 1, 1}, Shape{33, 17, 5}, Shape{70, 130, 600}, Shape{1, 200, 64}}) {
    for (const DType dtype : kTypes) {
      for (int bits = 0; bits < 8; ++bits) {
        MatmulProblem p{.m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .transpose_a = (bits & 1) != 0,
                        .transpose_b = (bits & 2) != 0,
                        .dtype = dtype,
                        .out_dtype = (bits & 4) != 0 ? DType::fp32 : dtype};
        p.stride_a = (p.transpose_a ? p.m : p.k) + 3;
        p.stride_b = (p.transpose_b ? p.k : p.n) + 1;
        p.stride_c = p.n;
        const Values a = stored(normal((p.transpose_a ? p.k : p.m) * p.stride_a, 1), dtype);
        const Values b = stored(normal((p.transpose_b ? p.n : p.k) * p.stride_b, 2), dtype);
        const DeviceArray pa = array(a, dtype), pb = array(b, dtype), c = empty(p.m * p.n, p.out_dtype);
        product->multiply(p, pa.data(), pb.data(), c.data());
        Values expected = testing::matmul(p, a, b);
        EXPECT_TRUE(near(c.values(), expected, p.out_dtype)) << name(dtype) << " " << bits;
        const Values before = c.values();
        p.accumulate = true;
        product->multiply(p, pa.data(), pb.data(), c.data());
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
        EXPECT_TRUE(near(c.values(), expected, p.out_dtype)) << name(dtype) << " added " << bits;
      }
    }
  }
}

TEST_F(Operations, SameBitsForAnyNumberOfThreads) {
  const std::int64_t rows = 300, in = 256, out = 384;
  const DeviceArray x = array(normal(rows * in, 1), DType::fp32), w = array(normal(out * in, 2), DType::fp32);
  const DeviceArray weight = array(normal(in, 3), DType::fp32), inv_rms = array(normal(rows, 4), DType::fp32);
  const auto product = make_matmul(context_);
  const auto run = [&](int threads) {
    set_num_threads(threads);
    const DeviceArray y = empty(rows * out, DType::fp32), d_weight = empty(in, DType::fp32),
                      d = empty(rows * in, DType::fp32);
    product->multiply(linear_forward(rows, in, out, DType::fp32, DType::fp32), x.data(), w.data(), y.data());
    RmsNormBackward backward{.rows = rows,
                             .width = in,
                             .s = x.data(),
                             .weight = weight.data(),
                             .inv_rms = inv_rms.as<float>(),
                             .d_out = x.data(),
                             .d_x = d.data(),
                             .d_weight = d_weight.data()};
    const DeviceArray workspace =
        empty(static_cast<std::int64_t>(workspace_bytes(Device::cpu(), backward)) / 4, DType::fp32);
    backward.workspace = workspace.data();
    rmsnorm_backward(context_, backward);
    return std::pair(y.bytes(), d_weight.bytes());
  };
  const int threads = num_threads();
  const auto one = run(1), three = run(3);
  set_num_threads(threads);
  EXPECT_EQ(one, three);
}

}  // namespace
}  // namespace warpmeter::layers
