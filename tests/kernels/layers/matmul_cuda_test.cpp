// Products on CUDA in every type, transposition, stride and alignment; the choice of candidates; under capture.
#include <cuda_runtime_api.h>

#include "kernels/layers/available.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/layers/rmsnorm.hpp"
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

using CudaMatmul = CudaTest;

constexpr DType kTypes[] = {DType::fp32, DType::tf32, DType::bf16, DType::fp16};

struct Shape {
  std::int64_t m, n, k;
};

/// TF32 rounds (or cuts) operands to 10 bits.
double slack(DType dtype) {
  return dtype == DType::tf32 ? 2e-3 : 2e-6;
}

TEST_F(CudaMatmul, EveryTransposeTypeAndStride) {
  ASSERT_TRUE(available(DeviceKind::cuda));
  for (const bool try_candidates : {false, true}) {
    const auto product = make_matmul(context_, {.try_candidates = try_candidates});
    for (const Shape shape : {Shape{1, 1, 1}, Shape{33, 17, 5}, Shape{70, 130, 600}, Shape{1, 200, 64}}) {
      for (const DType dtype : kTypes) {
        const DType storage = storage_of(dtype);
        for (int bits = 0; bits < 8; ++bits) {
          if (try_candidates && bits != 2 && bits != 5) continue;
          MatmulProblem p{.m = shape.m,
                          .n = shape.n,
                          .k = shape.k,
                          .transpose_a = (bits & 1) != 0,
                          .transpose_b = (bits & 2) != 0,
                          .dtype = dtype,
                          .out_dtype = (bits & 4) != 0 ? DType::fp32 : storage};
          p.stride_a = (p.transpose_a ? p.m : p.k) + 3;
          p.stride_b = (p.transpose_b ? p.k : p.n) + 1;
          p.stride_c = p.n;
          SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(p.m) + " x " + std::to_string(p.n) + " x " +
                       std::to_string(p.k) + " flags " + std::to_string(bits));
          const Values a = stored(normal((p.transpose_a ? p.k : p.m) * p.stride_a, 1), storage);
          const Values b = stored(normal((p.transpose_b ? p.n : p.k) * p.stride_b, 2), storage);
          const DeviceArray pa = array(a, storage), pb = array(b, storage), c = empty(p.m * p.n, p.out_dtype);
          product->multiply(p, pa.data(), pb.data(), c.data());
          Values expected = testing::matmul(p, a, b);
          EXPECT_TRUE(near(c.values(), expected, p.out_dtype, slack(dtype)));
          const auto first = c.bytes();
          product->multiply(p, pa.data(), pb.data(), c.data());
          EXPECT_EQ(c.bytes(), first) << "the same bits twice";
          const Values before = c.values();
          p.accumulate = true;
          product->multiply(p, pa.data(), pb.data(), c.data());
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
          EXPECT_TRUE(near(c.values(), expected, p.out_dtype, slack(dtype))) << "added";
        }
      }
    }
  }
}

/// A linear layer's three products at a size for which the library has many candidates; operands off the boundary.
TEST_F(CudaMatmul, LinearLayerWithCandidatesTried) {
  const std::int64_t rows = 256, in = 384, out = 512;
  for (const int spare : {0, 8}) {
    const auto product = make_matmul(context_, {.spare_multiprocessors = spare});
    for (const DType dtype : kTypes) {
      const DType storage = storage_of(dtype);
      SCOPED_TRACE(std::string(name(dtype)) + " spare " + std::to_string(spare));
      const Values x = stored(normal(rows * in, 1), storage), w = stored(normal(out * in, 2), storage);
      const Values d_y = stored(normal(rows * out, 3), storage);
      const DeviceArray px = array(x, storage), pw = array(w, storage), pd = array(d_y, storage);
      const auto check = [&](const MatmulProblem& p, const Values& a, const Values& b, const DeviceArray& pa,
                             const DeviceArray& pb) {
        const DeviceArray c = empty(p.m * p.n, p.out_dtype);
        product->multiply(p, pa.data(), pb.data(), c.data());
        EXPECT_TRUE(near(c.values(), testing::matmul(p, a, b), p.out_dtype, slack(dtype)));
        EXPECT_NE(product->kernel(p), "cublaslt");
        const auto bits = c.bytes();
        product->multiply(p, pa.data(), pb.data(), c.data());
        EXPECT_EQ(c.bytes(), bits);
      };
      check(linear_forward(rows, in, out, dtype, storage), x, w, px, pw);
      check(linear_input_gradient(rows, in, out, dtype, storage), d_y, w, pd, pw);
      check(linear_weight_gradient(rows, in, out, dtype, DType::fp32, false), d_y, x, pd, px);
      // One element on.
      Values shifted = x;
      shifted.insert(shifted.begin(), 0.0);
      const DeviceArray moved = array(shifted, storage), y = empty(rows * out, storage);
      const MatmulProblem forward = linear_forward(rows, in, out, dtype, storage);
      product->multiply(forward, moved.as<char>() + size_of(storage), pw.data(), y.data());
      EXPECT_TRUE(near(y.values(), testing::matmul(forward, x, w), storage, slack(dtype)));
    }
  }
}

TEST_F(CudaMatmul, CapturedStepsReplayWithTheSameBits) {
  const std::int64_t rows = 64, in = 96, out = 80;
  const DeviceArray x = array(normal(rows * in, 1), DType::bf16), w = array(normal(out * in, 2), DType::bf16);
  const DeviceArray scale = array(normal(out, 3), DType::bf16), y = empty(rows * out, DType::bf16);
  const DeviceArray normed = empty(rows * out, DType::bf16);
  const auto product = make_matmul(context_);
  const auto step = [&] {
    product->multiply(linear_forward(rows, in, out, DType::bf16, DType::bf16), x.data(), w.data(), y.data());
    rmsnorm_forward(context_, {.rows = rows,
                               .width = out,
                               .dtype = DType::bf16,
                               .x = y.data(),
                               .weight = scale.data(),
                               .out = normed.data()});
  };
  auto* stream = static_cast<cudaStream_t>(context_.stream.handle);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  // A product that nobody has seen, straight into a capture: no candidates are tried there.
  WM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  step();
  WM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  WM_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  WM_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  const auto captured = normed.bytes();
  step();
  EXPECT_EQ(normed.bytes(), captured);
  WM_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  EXPECT_EQ(normed.bytes(), captured);
  WM_CUDA_CHECK(cudaGraphExecDestroy(exec));
  WM_CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST_F(CudaMatmul, BesideRemembersTheSameAndHasItsOwnWorkspace) {
  const std::int64_t rows = 200, in = 96, out = 136;
  const DeviceArray x = array(normal(rows * in, 1), DType::bf16), w = array(normal(out * in, 2), DType::bf16);
  const DeviceArray y = empty(rows * out, DType::bf16), other = empty(rows * out, DType::bf16);
  const MatmulProblem problem = linear_forward(rows, in, out, DType::bf16, DType::bf16);
  const auto product = make_matmul(context_);
  product->multiply(problem, x.data(), w.data(), y.data());
  const Stream second(context_.device());
  const std::size_t before = context_.allocator->stats().current.requested;
  {
    const auto beside = product->beside({second.view(), context_.allocator});
    EXPECT_EQ(context_.allocator->stats().current.requested - before, matmul_workspace_bytes(context_.device()));
    EXPECT_EQ(beside->kernel(problem), product->kernel(problem));
    EXPECT_NE(beside->kernel(problem), "cublaslt") << "remembered";
    synchronize(context_.stream);
    beside->multiply(problem, x.data(), w.data(), other.data());
    synchronize(second.view());
    EXPECT_EQ(other.bytes(), y.bytes());
  }
  EXPECT_EQ(context_.allocator->stats().current.requested, before);
  EXPECT_EQ(context_.allocator->stats().harness, 0u) << "what trials were lent is given back";
}

TEST_F(CudaMatmul, WorkspaceIsTheAllocatorsAndGivenBack) {
  const std::size_t before = context_.allocator->stats().current.requested;
  {
    const auto product = make_matmul(context_);
    EXPECT_EQ(context_.allocator->stats().current.requested - before, matmul_workspace_bytes(Device::cuda()));
  }
  EXPECT_EQ(context_.allocator->stats().current.requested, before);
  EXPECT_EQ(context_.allocator->stats().external, 0u);
}

}  // namespace
}  // namespace warpmeter::layers
