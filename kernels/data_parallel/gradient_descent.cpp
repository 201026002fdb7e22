#include "kernels/data_parallel/gradient_descent.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::data_parallel {

namespace {
constexpr std::int64_t kPiece = 1 << 14;
}

void gradient_descent(const Context& context, const GradientDescent& a) {
  if (context.device().is_cuda()) {
#if WARPMETER_CUDA
    return cuda::gradient_descent(context, a);
#else
    WM_CHECK(false, "this build has no CUDA");
#endif
  }
  if (a.state->overflow != 0) return;
  const float rate = a.state->learning_rate, scale = a.scale_gradients ? a.state->update_scale : 1.0f;
  parallel_for((a.count + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(a.count, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) a.weight[i] -= rate * (scale * a.gradient[i]);
  });
}

}  // namespace warpmeter::data_parallel
