// The public operations: arguments checked, then handed to the device's own.
#include <cmath>
#include <string>

#include "kernels/layers/available.hpp"
#include "kernels/layers/detail/operations.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::layers {

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::fp32 || is_16bit(dtype);
}

void check_storage(DType dtype) {
  WM_CHECK(is_floating(dtype), "operations store fp32, bf16 or fp16, not " + std::string(name(dtype)));
}
void check_gradient(DType gradient, DType dtype) {
  WM_CHECK(gradient == DType::fp32 || gradient == dtype, "a gradient is fp32 or has its operand's type");
}
void check_shape(std::int64_t rows, std::int64_t width) {
  WM_CHECK(rows >= 0 && width >= 1, "rows must be at least 0, the width at least 1");
}

void check(const EmbeddingForward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.width);
}
void check(const EmbeddingBackward& a) {
  check_storage(a.dtype);
  check_gradient(a.gradient_dtype, a.dtype);
  check_shape(a.rows, a.width);
}
void check(const RmsNormForward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.width);
  WM_CHECK((a.addend == nullptr) == (a.sum == nullptr), "an addend needs a place for the sum, and only then");
}
void check(const RmsNormBackward& a) {
  check_storage(a.dtype);
  check_gradient(a.gradient_dtype, a.dtype);
  check_shape(a.rows, a.width);
}
void check(const RopeArguments& a) {
  check_storage(a.dtype);
  WM_CHECK(a.head_dim % 2 == 0 && a.head_dim >= 2, "RoPE turns pairs: head_dim must be even");
  WM_CHECK(a.seq_len >= 1 && a.in_stride >= a.heads * a.head_dim && a.out_stride >= a.heads * a.head_dim,
           "a row must hold every head");
}
void check(const SwigluForward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.width);
  WM_CHECK(a.in_stride >= a.width, "stride below the width");
}
void check(const SwigluBackward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.width);
  WM_CHECK(a.in_stride >= a.width && a.d_stride >= a.width, "stride below the width");
}
void check(const Elementwise& a) {
  check_storage(a.dtype);
}
void check(const Convert& a) {
  check_storage(a.in_dtype);
  check_storage(a.out_dtype);
}
void check(const CrossEntropyForward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.vocab);
  WM_CHECK(a.stride >= a.vocab, "stride below the vocabulary");
}
void check(const CrossEntropyBackward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.vocab);
  WM_CHECK(a.stride >= a.vocab, "stride below the vocabulary");
}
void check(const CrossEntropy& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.vocab);
  WM_CHECK(a.stride >= a.vocab, "stride below the vocabulary");
}
void check(const LogSoftmaxForward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.vocab);
}
void check(const NllForward& a) {
  check_shape(a.rows, a.vocab);
}
void check(const LogSoftmaxBackward& a) {
  check_storage(a.dtype);
  check_shape(a.rows, a.vocab);
}
void check(const Mean& a) {
  WM_CHECK(a.count >= 1, "no mean of nothing");
}
void check(const GradientNorm& a) {
  check_storage(a.dtype);
}
void check(const ScaleGradients& a) {
  check_storage(a.dtype);
}
void check(const AdamwArguments& a) {
  check_storage(a.weight_dtype);
  check_gradient(a.gradient_dtype, a.weight_dtype);
  WM_CHECK(a.moment_dtype == DType::fp32 || a.moment_dtype == DType::bf16, "moments are fp32 or bf16");
  WM_CHECK(a.master != MasterKind::correction || a.weight_dtype == DType::bf16, "corrections belong to bf16 weights");
  WM_CHECK(a.master != MasterKind::copy || is_16bit(a.weight_dtype), "an fp32 copy belongs to 16-bit weights");
}
void check(const SetWeights& a) {
  check_storage(a.weight_dtype);
}
void check(const FinishStep&) {}

}  // namespace

#if WARPMETER_LAYERS_CUDA
#define WM_ON_CUDA(call) return cuda::call
#else
#define WM_ON_CUDA(call) WM_CHECK(false, "this build has no layers for CUDA")
#endif

#define WM_DEFINE_OPERATION(function, Arguments)                             \
  void function(const Context& context, const Arguments& arguments) {        \
    check(arguments);                                                        \
    if (context.device().is_cpu()) return cpu::function(context, arguments); \
    WM_ON_CUDA(function(context, arguments));                                \
  }
WM_LAYER_OPERATIONS(WM_DEFINE_OPERATION)

#define WM_DEFINE_WORKSPACE(Arguments)                                     \
  std::size_t workspace_bytes(Device device, const Arguments& arguments) { \
    if (device.is_cpu()) return cpu::workspace_bytes(arguments);           \
    WM_ON_CUDA(workspace_bytes(arguments));                                \
  }
WM_LAYER_WORKSPACES(WM_DEFINE_WORKSPACE)

std::size_t matmul_workspace_bytes(Device device) {
  if (device.is_cpu()) return 0;
  WM_ON_CUDA(matmul_workspace_bytes());
}

std::unique_ptr<Matmul> make_matmul(const Context& context, MatmulOptions options) {
  if (context.device().is_cpu()) return cpu::make_matmul(context, options);
  WM_ON_CUDA(make_matmul(context, options));
}

bool available(DeviceKind kind) noexcept {
  return kind == DeviceKind::cpu || WARPMETER_LAYERS_CUDA != 0;
}

MatmulProblem linear_forward(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype, DType out_dtype) {
  return {.m = rows,
          .n = out,
          .k = in,
          .transpose_a = false,
          .transpose_b = true,
          .stride_a = in,
          .stride_b = in,
          .stride_c = out,
          .dtype = dtype,
          .out_dtype = out_dtype,
          .accumulate = false};
}

MatmulProblem linear_input_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                                    DType out_dtype) {
  return {.m = rows,
          .n = in,
          .k = out,
          .transpose_a = false,
          .transpose_b = false,
          .stride_a = out,
          .stride_b = in,
          .stride_c = in,
          .dtype = dtype,
          .out_dtype = out_dtype,
          .accumulate = false};
}

MatmulProblem linear_weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype, DType out_dtype,
                                     bool accumulate) {
  return {.m = out,
          .n = in,
          .k = rows,
          .transpose_a = true,
          .transpose_b = false,
          .stride_a = out,
          .stride_b = in,
          .stride_c = in,
          .dtype = dtype,
          .out_dtype = out_dtype,
          .accumulate = accumulate};
}

std::vector<float> rope_table(std::int64_t seq_len, std::int64_t head_dim, double theta) {
  WM_CHECK(head_dim >= 2 && head_dim % 2 == 0, "RoPE turns pairs: head_dim must be even");
  const std::int64_t half = head_dim / 2;
  std::vector<float> table(static_cast<std::size_t>(seq_len * head_dim));
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (std::int64_t position = 0; position < seq_len; ++position) {
      float* pair = table.data() + (position * half + i) * 2;
      pair[0] = static_cast<float>(std::cos(static_cast<double>(position) * frequency));
      pair[1] = static_cast<float>(std::sin(static_cast<double>(position) * frequency));
    }
  }
  return table;
}

}  // namespace warpmeter::layers
