// Linear layers with SwiGLU or RoPE in the same kernel, against fp64 and against the two operations one after another.
#include <cmath>

#include <cuda_runtime_api.h>

#include "kernels/layers/linear_epilogue.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/swiglu.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "tests/kernels/layers/cuda_fixture.hpp"

namespace warpmeter::layers {
namespace {

using testing::CudaTest;
using testing::DeviceArray;
using testing::near;
using testing::normal;
using testing::stored;
using testing::Values;

constexpr DType kTypes[] = {DType::bf16, DType::fp16};

struct LinearEpilogue : CudaTest {
  /// The largest difference that one rounding more or less of an operand of this type makes.
  static double one_rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

  /// That `got` is `expected` but for the order of the product's sums: few elements, and those by a rounding.
  static ::testing::AssertionResult alike(const Values& got, const Values& expected, DType dtype) {
    double largest = 0;
    for (const double e : expected) largest = std::max(largest, std::abs(e));
    std::size_t different = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = std::abs(got[i] - expected[i]);
      if (!(error <= 2 * one_rounding(dtype) * largest)) {
        return ::testing::AssertionFailure() << "element " << i << ": " << got[i] << " for " << expected[i];
      }
      different += error != 0 ? 1 : 0;
    }
    if (different * 20 <= expected.size() + 20) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << different << " of " << expected.size() << " differ";
  }
};

struct Shape {
  std::int64_t rows, in, width;
};

TEST_F(LinearEpilogue, SwigluOfAProduct) {
  // One step of K, fewer than stages, many; rows and columns that fill no tile, of each width (160, 192, 256 on 132
  // multiprocessors); more tiles than multiprocessors.
  for (const Shape s : {Shape{1, 8, 8}, Shape{111, 64, 160}, Shape{130, 200, 104}, Shape{257, 1000, 328},
                        Shape{1000, 72, 1528}, Shape{1000, 72, 1992}, Shape{1000, 40, 5112}}) {
    for (const DType dtype : kTypes) {
      SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.in) + " x " +
                   std::to_string(s.width));
      const Values x = stored(normal(s.rows * s.in, 1), dtype);
      const double deviation = 1 / std::sqrt(static_cast<double>(s.in));
      const Values w = stored(normal(2 * s.width * s.in, 2, deviation), dtype);
      const DeviceArray px = array(x, dtype), pw = array(w, dtype);
      const DeviceArray gate_up = empty(s.rows * 2 * s.width, dtype), out = empty(s.rows * s.width, dtype);
      SwigluLinear a{.rows = s.rows,
                     .in = s.in,
                     .width = s.width,
                     .dtype = dtype,
                     .x = px.data(),
                     .weights = pw.data(),
                     .gate_up = gate_up.data(),
                     .out = out.data()};
      if (!fuses(context_.device(), a)) GTEST_SKIP() << "not on this GPU, or not in this build";
      swiglu_linear(context_, a);
      EXPECT_TRUE(near(gate_up.values(), testing::matmul(linear_forward(s.rows, s.in, 2 * s.width, dtype, dtype), x, w),
                       dtype));
      // Of what was stored.
      const Values inner = gate_up.values();
      Values expected;
      for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t i = 0; i < s.width; ++i) {
          const double gate = inner[static_cast<std::size_t>(row * 2 * s.width + i)];
          const double up = inner[static_cast<std::size_t>(row * 2 * s.width + s.width + i)];
          expected.push_back(gate / (1 + std::exp(-gate)) * up);
        }
      }
      EXPECT_TRUE(near(out.values(), expected, dtype));
      const auto bits = out.bytes();
      const DeviceArray again = empty(s.rows * s.width, dtype);
      a.gate_up = nullptr;
      a.out = again.data();
      swiglu_linear(context_, a);
      EXPECT_EQ(again.bytes(), bits) << "gate and up not wanted";
      const DeviceArray inner_again = empty(s.rows * 2 * s.width, dtype);
      a.gate_up = inner_again.data();
      a.out = nullptr;
      swiglu_linear(context_, a);
      EXPECT_EQ(inner_again.bytes(), gate_up.bytes()) << "the result not wanted";
    }
  }
}

TEST_F(LinearEpilogue, SwigluAtTheModelsSizesIsTheTwoOperations) {
  const auto product = make_matmul(context_, {.try_candidates = false});
  for (const Shape s : {Shape{1024, 768, 3072}, Shape{1024, 1024, 4096}, Shape{1024, 1600, 6400}}) {
    const DType dtype = DType::bf16;
    const double deviation = 1 / std::sqrt(static_cast<double>(s.in));
    const DeviceArray x = array(normal(s.rows * s.in, 1), dtype);
    const DeviceArray w = array(normal(2 * s.width * s.in, 2, deviation), dtype);
    const DeviceArray two = empty(s.rows * 2 * s.width, dtype), out = empty(s.rows * s.width, dtype);
    const SwigluLinear a{.rows = s.rows,
                         .in = s.in,
                         .width = s.width,
                         .dtype = dtype,
                         .x = x.data(),
                         .weights = w.data(),
                         .gate_up = two.data(),
                         .out = out.data()};
    if (!fuses(context_.device(), a)) GTEST_SKIP() << "not on this GPU, or not in this build";
    swiglu_linear(context_, a);
    const Values got_two = two.values(), got = out.values();
    product->multiply(linear_forward(s.rows, s.in, 2 * s.width, dtype, dtype), x.data(), w.data(), two.data());
    swiglu_forward(context_, {.rows = s.rows,
                              .width = s.width,
                              .dtype = dtype,
                              .gate = two.data(),
                              .up = two.as<char>() + s.width * 2,
                              .in_stride = 2 * s.width,
                              .out = out.data()});
    EXPECT_TRUE(alike(got_two, two.values(), dtype)) << s.width;
    EXPECT_TRUE(alike(got, out.values(), dtype)) << s.width;
  }
}

TEST_F(LinearEpilogue, RopeOfAProductIsTheTwoOperations) {
  struct Heads {
    std::int64_t rows, seq_len, heads, head_dim;
  };
  const auto product = make_matmul(context_, {.try_candidates = false});
  for (const Heads h : {Heads{1, 1, 1, 8}, Heads{111, 37, 4, 16}, Heads{130, 65, 3, 80}, Heads{1024, 256, 12, 64},
                        Heads{1024, 256, 16, 64}, Heads{1024, 256, 20, 64}, Heads{512, 256, 32, 80}}) {
    for (const DType dtype : kTypes) {
      const std::int64_t width = h.heads * h.head_dim;
      SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(h.rows) + " x " + std::to_string(width));
      const double deviation = 1 / std::sqrt(static_cast<double>(width));
      const DeviceArray x = array(normal(h.rows * width, 1), dtype);
      const DeviceArray w = array(normal(3 * width * width, 2, deviation), dtype);
      const std::vector<float> angles = rope_table(h.seq_len, h.head_dim);
      const DeviceArray table = array(Values(angles.begin(), angles.end()), DType::fp32);
      const DeviceArray qkv = empty(h.rows * 3 * width, dtype), expected = empty(h.rows * 3 * width, dtype);
      const RopeLinear a{.rows = h.rows,
                         .seq_len = h.seq_len,
                         .heads = h.heads,
                         .head_dim = h.head_dim,
                         .dtype = dtype,
                         .table = table.as<float>(),
                         .x = x.data(),
                         .weight = w.data(),
                         .qkv = qkv.data()};
      if (!fuses(context_.device(), a)) GTEST_SKIP() << "not on this GPU, or not in this build";
      rope_linear(context_, a);
      const auto bits = qkv.bytes();
      product->multiply(linear_forward(h.rows, width, 3 * width, dtype, dtype), x.data(), w.data(), expected.data());
      rope(context_, {.rows = h.rows,
                      .seq_len = h.seq_len,
                      .heads = h.heads,
                      .head_dim = h.head_dim,
                      .dtype = dtype,
                      .table = table.as<float>(),
                      .q_in = expected.data(),
                      .k_in = expected.as<char>() + 2 * width,
                      .in_stride = 3 * width,
                      .q_out = expected.data(),
                      .k_out = expected.as<char>() + 2 * width,
                      .out_stride = 3 * width});
      EXPECT_TRUE(alike(qkv.values(), expected.values(), dtype));
      // Recorded, it is the same; and so it is right after a kernel that writes x.
      auto* stream = static_cast<cudaStream_t>(context_.stream.handle);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      WM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      rope_linear(context_, a);
      rope_linear(context_, a);
      WM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
      WM_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
      WM_CUDA_CHECK(cudaGraphLaunch(exec, stream));
      EXPECT_EQ(qkv.bytes(), bits);
      WM_CUDA_CHECK(cudaGraphExecDestroy(exec));
      WM_CUDA_CHECK(cudaGraphDestroy(graph));
    }
  }
}

TEST_F(LinearEpilogue, WhatItDoesNotTake) {
  const SwigluLinear good{.rows = 4, .in = 64, .width = 64, .dtype = DType::bf16};
  if (!fuses(context_.device(), good)) GTEST_SKIP() << "not on this GPU, or not in this build";
  SwigluLinear odd = good;
  odd.in = 60;
  EXPECT_FALSE(fuses(context_.device(), odd));
  odd = good;
  odd.width = 4;
  EXPECT_FALSE(fuses(context_.device(), odd));
  odd = good;
  odd.dtype = DType::fp32;
  EXPECT_FALSE(fuses(context_.device(), odd));
  odd = good;
  odd.x = reinterpret_cast<const void*>(std::uintptr_t{8});
  EXPECT_FALSE(fuses(context_.device(), odd));
  EXPECT_FALSE(fuses(Device::cpu(), good));
  EXPECT_FALSE(fuses(context_.device(), RopeLinear{.rows = 4, .seq_len = 4, .heads = 2, .head_dim = 12}));
}

}  // namespace
}  // namespace warpmeter::layers
