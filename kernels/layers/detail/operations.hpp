#pragma once

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/embedding.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/step_state.hpp"
#include "kernels/layers/swiglu.hpp"

/// Every operation of this room and the structure of its arguments. The public function checks the arguments and hands
/// them to the one of the same name in namespace cpu or cuda: `void cuda::rope(const Context&, const RopeArguments&)`
/// is defined in rope_cuda.cu, `void cpu::rope(...)` in rope_cpu.cpp.
#define WM_LAYER_OPERATIONS(X)                    \
  X(embedding_forward, EmbeddingForward)          \
  X(embedding_backward, EmbeddingBackward)        \
  X(rmsnorm_forward, RmsNormForward)              \
  X(rmsnorm_backward, RmsNormBackward)            \
  X(rope, RopeArguments)                          \
  X(swiglu_forward, SwigluForward)                \
  X(swiglu_backward, SwigluBackward)              \
  X(elementwise, Elementwise)                     \
  X(convert, Convert)                             \
  X(cross_entropy_forward, CrossEntropyForward)   \
  X(cross_entropy_backward, CrossEntropyBackward) \
  X(cross_entropy, CrossEntropy)                  \
  X(log_softmax_forward, LogSoftmaxForward)       \
  X(nll_forward, NllForward)                      \
  X(log_softmax_backward, LogSoftmaxBackward)     \
  X(mean, Mean)                                   \
  X(gradient_norm, GradientNorm)                  \
  X(scale_gradients, ScaleGradients)              \
  X(adamw, AdamwArguments)                        \
  X(set_weights, SetWeights)                      \
  X(finish_step, FinishStep)

/// Operations that need scratch: `std::size_t cuda::workspace_bytes(const EmbeddingBackward&)`.
#define WM_LAYER_WORKSPACES(X) \
  X(EmbeddingBackward)         \
  X(RmsNormBackward)           \
  X(GradientNorm)

namespace warpmeter::layers {

#define WM_DECLARE_OPERATION(function, Arguments) void function(const Context& context, const Arguments& arguments);
#define WM_DECLARE_WORKSPACE(Arguments) [[nodiscard]] std::size_t workspace_bytes(const Arguments& arguments);

namespace cpu {
WM_LAYER_OPERATIONS(WM_DECLARE_OPERATION)
WM_LAYER_WORKSPACES(WM_DECLARE_WORKSPACE)
[[nodiscard]] std::unique_ptr<Matmul> make_matmul(const Context& context, MatmulOptions options);
}  // namespace cpu

namespace cuda {
WM_LAYER_OPERATIONS(WM_DECLARE_OPERATION)
WM_LAYER_WORKSPACES(WM_DECLARE_WORKSPACE)
[[nodiscard]] std::size_t matmul_workspace_bytes();
[[nodiscard]] std::unique_ptr<Matmul> make_matmul(const Context& context, MatmulOptions options);
}  // namespace cuda

#undef WM_DECLARE_OPERATION
#undef WM_DECLARE_WORKSPACE

}  // namespace warpmeter::layers
