#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "kernels/layers/adamw.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::transformer {

/// Which type everything has. Norms, softmax, loss and reductions compute in fp32 under every policy.
///
/// fp32       everything fp32
/// tf32       as fp32, but products round their operands to tf32 (CUDA)
/// bf16       mixed: bf16 weights with a 16-bit correction (together exactly the fp32 master), bf16 activations, fp32
///            gradients of weights and fp32 moments
/// fp16       mixed: fp16 weights beside fp32 masters, fp16 activations, fp32 gradients and moments, dynamic loss scale
/// bf16_pure  everything bf16, no master
struct PrecisionPolicy {
  std::string_view name;
  DType compute;     ///< how products multiply: fp32, tf32, bf16, fp16
  DType activation;  ///< storage of activations and of the weights that products read
  layers::MasterKind master;
  DType gradient;  ///< of weights
  DType moment;    ///< of the optimizer
  bool loss_scaling;

  /// Bytes of one weight with its master.
  [[nodiscard]] std::size_t master_bytes() const {
    return master == layers::MasterKind::none ? 0 : master == layers::MasterKind::copy ? 4 : 2;
  }
};

[[nodiscard]] std::span<const PrecisionPolicy> precision_policies();
/// nullptr for an unknown name.
[[nodiscard]] const PrecisionPolicy* find_precision(std::string_view name);

/// What a loss scale starts from (torch.amp.GradScaler's default).
inline constexpr float kInitialLossScale = 65536.0f;

}  // namespace warpmeter::transformer
