// Every operation on CUDA against its fp64 reference, in each type, at odd and even widths, aligned and not.
#include <cmath>

#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/embedding.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/swiglu.hpp"
#include "tests/kernels/layers/cuda_fixture.hpp"

namespace warpmeter::layers {
namespace {

using testing::CudaTest;
using testing::DeviceArray;
using testing::DeviceState;
using testing::near;
using testing::normal;
using testing::stored;
using testing::Tokens;
using testing::Values;

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::int64_t kWidths[] = {1, 5, 16, 37, 200, 768, 2560};

using CudaOperations = CudaTest;

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

struct Norm {
  std::int64_t rows, width;
};

/// One row a thread block, several teams a block, rows of four vectors a thread, rows read twice.
constexpr Norm kNorms[] = {{67, 1},   {67, 5},     {67, 16},   {67, 37},   {67, 200},  {1, 768},
                           {67, 768}, {1100, 768}, {33, 2560}, {9, 12000}, {5, 17000}, {2000, 64}};

TEST_F(CudaOperations, RmsNormForwardAndBackward) {
  for (const DType dtype : kTypes) {
    for (const auto& [rows, width] : kNorms) {
      SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(rows) + " x " + std::to_string(width));
      const Values x = stored(normal(rows * width, 1), dtype), addend = stored(normal(rows * width, 2), dtype);
      const Values weight = stored(normal(width, 3), dtype), d_out = stored(normal(rows * width, 4), dtype);
      const DeviceArray px = array(x, dtype), pa = array(addend, dtype), pw = array(weight, dtype);
      const DeviceArray out = empty(rows * width, dtype), sum = empty(rows * width, dtype);
      const DeviceArray inv_rms = empty(rows, DType::fp32);
      RmsNormForward forward{.rows = rows,
                             .width = width,
                             .dtype = dtype,
                             .x = px.data(),
                             .addend = pa.data(),
                             .sum = sum.data(),
                             .weight = pw.data(),
                             .out = out.data(),
                             .inv_rms = inv_rms.as<float>()};
      rmsnorm_forward(context_, forward);
      EXPECT_TRUE(near(sum.values(), plus(x, addend), dtype, 1e-7));
      const Values s = sum.values();  // what is normalized is what was stored
      const testing::RmsNormResult expected = testing::rmsnorm(s, weight, 1e-5);
      EXPECT_TRUE(near(out.values(), expected.out, dtype));
      EXPECT_TRUE(near(inv_rms.values(), expected.inv_rms, DType::fp32));
      const auto bits = out.bytes();
      forward.sum = px.data();  // in place
      rmsnorm_forward(context_, forward);
      EXPECT_EQ(px.bytes(), sum.bytes());
      EXPECT_EQ(out.bytes(), bits);
      forward.addend = nullptr;
      forward.sum = nullptr;
      forward.inv_rms = nullptr;
      rmsnorm_forward(context_, forward);
      EXPECT_EQ(out.bytes(), bits) << "the sum, normalized without an addend";

      const Values residual = stored(normal(rows * width, 5), dtype);
      const testing::RmsNormGradients gradients = testing::rmsnorm_gradients(s, weight, 1e-5, d_out);
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
        const DeviceArray scratch = workspace(backward);
        backward.workspace = scratch.data();
        rmsnorm_backward(context_, backward);
        // A row of one element is nearly constant under the norm: its gradient is what two large terms leave.
        EXPECT_TRUE(near(d_x.values(), gradients.d_s, dtype, width == 1 ? 2e-5 : 2e-6));
        EXPECT_TRUE(near(d_weight.values(), gradients.d_weight, gradient_dtype));
        const auto first = d_weight.bytes();
        rmsnorm_backward(context_, backward);
        EXPECT_EQ(d_weight.bytes(), first) << "the same bits twice";

        backward.accumulate = true;
        backward.d_residual = pr.data();
        backward.d_x = pd.data();  // in place
        const Values before = d_weight.values();
        rmsnorm_backward(context_, backward);
        EXPECT_TRUE(near(pd.values(), plus(gradients.d_s, residual), dtype));
        EXPECT_TRUE(near(d_weight.values(), plus(gradients.d_weight, before), gradient_dtype));
      }
    }
  }
}

TEST_F(CudaOperations, RopeTurnsPairsOfQAndK) {
  const std::int64_t rows = 10, seq_len = 5;
  for (const DType dtype : kTypes) {
    for (const std::int64_t heads : {3, 40}) {
      for (const std::int64_t head_dim : {2, 6, 64, 80, 1200}) {
        const std::int64_t width = heads * head_dim, stride = 3 * width;  // q, k, v side by side
        const Values packed = stored(normal(rows * stride, 1), dtype);
        const DeviceArray in = array(packed, dtype);
        const std::vector<float> angles = rope_table(seq_len, head_dim);
        const DeviceArray table = array(Values(angles.begin(), angles.end()), DType::fp32);
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
                          .table = table.as<float>(),
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
          EXPECT_TRUE(near(out.values(), expected, dtype)) << name(dtype) << " " << head_dim;
          // Q alone, out of place.
          const DeviceArray q = empty(rows * width, dtype);
          rope(context_, {.rows = rows,
                          .seq_len = seq_len,
                          .heads = heads,
                          .head_dim = head_dim,
                          .dtype = dtype,
                          .inverse = inverse,
                          .table = table.as<float>(),
                          .q_in = in.data(),
                          .in_stride = stride,
                          .q_out = q.data(),
                          .out_stride = width});
          Values alone;
          for (std::int64_t row = 0; row < rows; ++row) {
            const auto begin = expected.begin() + row * stride;
            alone.insert(alone.end(), begin, begin + width);
          }
          EXPECT_TRUE(near(q.values(), alone, dtype));
        }
      }
    }
  }
}

TEST_F(CudaOperations, SwigluForwardAndBackward) {
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
      EXPECT_TRUE(near(out.values(), testing::swiglu(gate, up), dtype)) << name(dtype) << " " << width;

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
                                 .out = pd.data()});  // every output in an input's place
      const testing::SwigluGradients gradients = testing::swiglu_gradients(gate, up, d_out);
      Values d_packed;
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto g = gradients.d_gate.begin() + row * width, u = gradients.d_up.begin() + row * width;
        d_packed.insert(d_packed.end(), g, g + width);
        d_packed.insert(d_packed.end(), u, u + width);
      }
      EXPECT_TRUE(near(in.values(), d_packed, dtype)) << name(dtype) << " " << width;
      EXPECT_EQ(pd.bytes(), out.bytes());
    }
  }
}

TEST_F(CudaOperations, SwigluOfExtremes) {
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

TEST_F(CudaOperations, ElementwiseAsAnEagerFramework) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t count : {1, 31, 9001}) {
      for (const std::int64_t skip : {0, 1}) {  // 1: arrays that do not begin on 16 bytes
        const Values a = stored(normal(count + skip, 1, 2), dtype), b = stored(normal(count + skip, 2), dtype);
        const DeviceArray pa = array(a, dtype), pb = array(b, dtype);
        const std::size_t offset = static_cast<std::size_t>(skip) * size_of(dtype);
        const auto tail = [&](const Values& values) { return Values(values.begin() + skip, values.end()); };
        const auto run = [&](ElementwiseOperation operation) {
          const DeviceArray out = empty(count + skip, dtype);
          elementwise(context_, {.operation = operation,
                                 .count = count,
                                 .dtype = dtype,
                                 .a = pa.as<char>() + offset,
                                 .b = pb.as<char>() + offset,
                                 .out = out.as<char>() + offset});
          return tail(out.values());
        };
        const Values x = tail(a), y = tail(b);
        Values product(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) product[i] = x[i] * y[i];
        EXPECT_TRUE(near(run(ElementwiseOperation::add), plus(x, y), dtype));
        EXPECT_TRUE(near(run(ElementwiseOperation::multiply), product, dtype));
        EXPECT_TRUE(near(run(ElementwiseOperation::silu), testing::silu(x), dtype));
        const Values ones(x.size(), 1.0);
        EXPECT_TRUE(
            near(run(ElementwiseOperation::silu_backward), testing::swiglu_gradients(x, ones, y).d_gate, dtype));
        for (const DType other : kTypes) {
          const DeviceArray converted = empty(count + skip, other);
          convert(context_, {.count = count,
                             .in_dtype = dtype,
                             .out_dtype = other,
                             .in = pa.as<char>() + offset,
                             .out = converted.as<char>() + static_cast<std::size_t>(skip) * size_of(other)});
          EXPECT_EQ(tail(converted.values()), stored(x, other)) << name(dtype) << " to " << name(other);
        }
      }
    }
  }
}

TEST_F(CudaOperations, CrossEntropyEveryWay) {
  struct Shape {
    std::int64_t rows, vocab, stride;
  };
  // Rows held in registers, read twice, and that begin anywhere.
  for (const Shape& shape : {Shape{41, 1, 1}, Shape{41, 7, 7}, Shape{41, 1000, 1000}, Shape{41, 1001, 1003},
                             Shape{5, 10000, 10000}, Shape{3, 50257, 50257}}) {
    for (const DType dtype : kTypes) {
      const auto [rows, vocab, stride] = shape;
      SCOPED_TRACE(std::string(name(dtype)) + " vocabulary " + std::to_string(vocab));
      const Values dense = stored(normal(rows * vocab, 1, 3), dtype);
      Values logits(static_cast<std::size_t>(rows * stride), 1e4);  // between rows: nothing that may count
      Tokens targets;
      for (std::int64_t row = 0; row < rows; ++row) {
        targets.push_back(static_cast<std::int32_t>(row * 13 % vocab));
        std::copy_n(dense.begin() + row * vocab, vocab, logits.begin() + row * stride);
      }
      logits = stored(logits, dtype);
      testing::CrossEntropyResult expected = testing::cross_entropy(dense, vocab, targets);
      const DeviceArray pl = array(logits, dtype), pt = whole(targets);
      const DeviceArray lse = empty(rows, DType::fp32), losses = empty(rows, DType::fp32);
      cross_entropy_forward(context_, {.rows = rows,
                                       .vocab = vocab,
                                       .dtype = dtype,
                                       .logits = pl.data(),
                                       .stride = stride,
                                       .targets = pt.as<std::int32_t>(),
                                       .lse = lse.as<float>(),
                                       .losses = losses.as<float>()});
      EXPECT_TRUE(near(lse.values(), expected.lse, DType::fp32));
      EXPECT_TRUE(near(losses.values(), expected.losses, DType::fp32));

      const DeviceArray pdense = array(dense, dtype), eager = empty(rows * vocab, DType::fp32);
      const DeviceArray eager_losses = empty(rows, DType::fp32);
      log_softmax_forward(
          context_, {.rows = rows, .vocab = vocab, .dtype = dtype, .logits = pdense.data(), .out = eager.as<float>()});
      nll_forward(context_, {.rows = rows,
                             .vocab = vocab,
                             .log_probabilities = eager.as<float>(),
                             .targets = pt.as<std::int32_t>(),
                             .losses = eager_losses.as<float>()});
      EXPECT_TRUE(near(eager_losses.values(), expected.losses, DType::fp32));

      StepState scalars;
      scalars.loss_scale = 64;
      const DeviceState state(context_, scalars);
      const float scale = 1.0f / static_cast<float>(rows);
      for (double& value : expected.d_logits) value *= 64.0 / static_cast<double>(rows);
      const DeviceArray d_eager = empty(rows * vocab, dtype);
      log_softmax_backward(context_, {.rows = rows,
                                      .vocab = vocab,
                                      .dtype = dtype,
                                      .log_probabilities = eager.as<float>(),
                                      .targets = pt.as<std::int32_t>(),
                                      .scale = scale,
                                      .state = state.data(),
                                      .d_logits = d_eager.data()});
      EXPECT_TRUE(near(d_eager.values(), expected.d_logits, dtype, 3e-6));

      // In rows of the same stride; between them everything stays.
      Values d_rows = logits;
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(expected.d_logits.begin() + row * vocab, vocab, d_rows.begin() + row * stride);
      }
      const auto between_kept = [&](const DeviceArray& in) {
        Values values = in.values();
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t i = row * stride + vocab; i < (row + 1) * stride; ++i) {
            if (values[static_cast<std::size_t>(i)] != logits[static_cast<std::size_t>(i)]) return false;
            d_rows[static_cast<std::size_t>(i)] = values[static_cast<std::size_t>(i)] = 0;
          }
        }
        return bool(near(values, d_rows, dtype, 3e-6));
      };
      const DeviceArray at_once = array(logits, dtype), at_once_losses = empty(rows, DType::fp32);
      cross_entropy(context_, {.rows = rows,
                               .vocab = vocab,
                               .dtype = dtype,
                               .logits = at_once.data(),
                               .stride = stride,
                               .targets = pt.as<std::int32_t>(),
                               .losses = at_once_losses.as<float>(),
                               .scale = scale,
                               .state = state.data()});
      EXPECT_EQ(at_once_losses.bytes(), losses.bytes());
      EXPECT_TRUE(between_kept(at_once));

      CrossEntropyBackward backward{.rows = rows,
                                    .vocab = vocab,
                                    .dtype = dtype,
                                    .logits = pl.data(),
                                    .stride = stride,
                                    .targets = pt.as<std::int32_t>(),
                                    .lse = lse.as<float>(),
                                    .scale = scale,
                                    .state = state.data()};
      const DeviceArray apart = empty(rows * stride + 1, dtype);  // one element on: in no step with the logits
      backward.d_logits = apart.as<char>() + size_of(dtype);
      cross_entropy_backward(context_, backward);
      backward.d_logits = pl.data();
      cross_entropy_backward(context_, backward);
      EXPECT_TRUE(between_kept(pl));
      const auto shifted = apart.values();
      Values apart_rows, pl_rows;
      const Values in_place = pl.values();
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t i = row * stride; i < row * stride + vocab; ++i) {
          apart_rows.push_back(shifted[static_cast<std::size_t>(i + 1)]);
          pl_rows.push_back(in_place[static_cast<std::size_t>(i)]);
        }
      }
      EXPECT_EQ(apart_rows, pl_rows);

      const DeviceArray average = empty(1, DType::fp32);
      mean(context_, {.count = rows, .values = losses.as<float>(), .out = average.as<float>()});
      double sum = 0;
      for (const double loss : expected.losses) sum += loss;
      EXPECT_TRUE(near(average.values(), {{sum / static_cast<double>(rows)}}, DType::fp32, 1e-6));
    }
  }
}

// A thread all of whose logits are NaN knows no largest one: its sum counts all the same.
TEST_F(CudaOperations, CrossEntropyOfANaNIsOne) {
  for (const DType dtype : kTypes) {
    // Rows of one warp, of several, and read twice.
    for (const std::int64_t vocab : {64, 5000, 50257}) {
      SCOPED_TRACE(std::string(name(dtype)) + " vocabulary " + std::to_string(vocab));
      constexpr std::int64_t kRows = 3;
      Values logits = normal(kRows * vocab, 1);
      // All of the second row that lies in the 32 bytes (fp32) or 16 where it begins: whole vectors.
      std::fill_n(logits.begin() + vocab, 8 - vocab % 8, std::nan(""));
      const Tokens targets(kRows, 40);
      const DeviceArray pl = array(logits, dtype), pt = whole(targets);
      const DeviceArray lse = empty(kRows, DType::fp32), losses = empty(kRows, DType::fp32);
      cross_entropy_forward(context_, {.rows = kRows,
                                       .vocab = vocab,
                                       .dtype = dtype,
                                       .logits = pl.data(),
                                       .stride = vocab,
                                       .targets = pt.as<std::int32_t>(),
                                       .lse = lse.as<float>(),
                                       .losses = losses.as<float>()});
      const DeviceArray eager = empty(kRows * vocab, DType::fp32);
      log_softmax_forward(
          context_, {.rows = kRows, .vocab = vocab, .dtype = dtype, .logits = pl.data(), .out = eager.as<float>()});
      const DeviceArray at_once_losses = empty(kRows, DType::fp32);
      cross_entropy(context_, {.rows = kRows,
                               .vocab = vocab,
                               .dtype = dtype,
                               .logits = pl.data(),
                               .stride = vocab,
                               .targets = pt.as<std::int32_t>(),
                               .losses = at_once_losses.as<float>()});
      const Values got_lse = lse.values(), got = losses.values(), at_once = at_once_losses.values(),
                   log_probabilities = eager.values(), gradient = pl.values();
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto r = static_cast<std::size_t>(row), target = static_cast<std::size_t>(row * vocab + 40);
        EXPECT_EQ(std::isnan(got_lse[r]), row == 1) << "row " << row << ": " << got_lse[r];
        EXPECT_EQ(std::isnan(got[r]), row == 1) << "row " << row << ": " << got[r];
        EXPECT_EQ(std::isnan(at_once[r]), row == 1) << "row " << row << ": " << at_once[r];
        EXPECT_EQ(std::isnan(log_probabilities[target]), row == 1) << "row " << row;
        EXPECT_EQ(std::isnan(gradient[target]), row == 1) << "row " << row;
      }
    }
  }
}

TEST_F(CudaOperations, EmbeddingForwardAndBackward) {
  struct Shape {
    std::int64_t rows, vocab;
  };
  for (const auto& [rows, vocab] : {Shape{90, 23}, Shape{1, 1}, Shape{3000, 5000}}) {
    Tokens tokens;
    for (std::int64_t row = 0; row < rows; ++row) {
      tokens.push_back(static_cast<std::int32_t>(row * row % std::max<std::int64_t>(vocab - 3, 1)));
    }
    for (const DType dtype : kTypes) {
      for (const std::int64_t width : {1, 40, 60, 700}) {
        if (rows > 100 && width > 60) continue;
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(rows) + " x " + std::to_string(width));
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
          const DeviceArray scratch = workspace(backward);
          backward.workspace = scratch.data();
          embedding_backward(context_, backward);
          const Values expected = testing::embedding_gradient(d_out, width, tokens, vocab);
          EXPECT_TRUE(near(d_table.values(), expected, gradient_dtype));
          const auto bits = d_table.bytes();
          embedding_backward(context_, backward);
          EXPECT_EQ(d_table.bytes(), bits) << "the same bits twice";
          const Values before = d_table.values();
          backward.accumulate = true;
          embedding_backward(context_, backward);
          EXPECT_TRUE(near(d_table.values(), plus(expected, before), gradient_dtype));
        }
      }
    }
  }
}

TEST_F(CudaOperations, TokensOutsideTheVocabularyShow) {
  const DeviceArray tokens = whole({0, 3, -1, 2}), table = array(normal(6, 1), DType::fp32);
  const DeviceArray out = empty(8, DType::fp32), d_table = empty(6, DType::fp32);
  embedding_forward(context_, {.rows = 4,
                               .width = 2,
                               .vocab = 3,
                               .tokens = tokens.as<std::int32_t>(),
                               .table = table.data(),
                               .out = out.data()});
  const Values rows = out.values(), values = table.values();
  EXPECT_EQ(rows[0], values[0]);
  EXPECT_TRUE(std::isnan(rows[2]) && std::isnan(rows[3]) && std::isnan(rows[4]) && std::isnan(rows[5]));
  EXPECT_EQ(rows[7], values[5]);
  const DeviceArray d_out = array({1, 2, 3, 4, 5, 6, 7, 8}, DType::fp32);
  EmbeddingBackward backward{.rows = 4,
                             .width = 2,
                             .vocab = 3,
                             .tokens = tokens.as<std::int32_t>(),
                             .d_out = d_out.data(),
                             .d_table = d_table.data()};
  const DeviceArray scratch = workspace(backward);
  backward.workspace = scratch.data();
  embedding_backward(context_, backward);
  EXPECT_EQ(d_table.values(), (Values{1, 2, 0, 0, 7, 8}));

  const DeviceArray losses = empty(4, DType::fp32), logits = array(Values(12, 0.0), DType::fp32);
  cross_entropy(context_, {.rows = 4,
                           .vocab = 3,
                           .logits = logits.data(),
                           .stride = 3,
                           .targets = tokens.as<std::int32_t>(),
                           .losses = losses.as<float>()});
  const Values loss = losses.values();
  EXPECT_NEAR(loss[0], std::log(3.0), 1e-6);
  EXPECT_TRUE(std::isnan(loss[1]) && std::isnan(loss[2]));
}

}  // namespace
}  // namespace warpmeter::layers
