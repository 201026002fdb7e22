#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention::conformance {

/// What the 16-bit flash kernels of GPUs compute, one number at a time on the host: scores, softmax and sums in fp32,
/// P and dS rounded for their products, LSE in fp32, exponentials of base 2. Right but slow; or wrong in one way.
class EmulatedFlash final : public Implementation {
 public:
  enum class Maximum {
    followed,  ///< a row's maximum is the true one of the keys so far
    lagging,   ///< it moves only when the true one has grown by 2^8 in exponentials
  };
  enum class Fault {
    none,
    mask_moved,     ///< causal rows see one key more
    key_dropped,    ///< the key that the last query sees most of is left out
    p_cut,          ///< P is rounded towards zero
    maximum_stale,  ///< the sum is rescaled to a new maximum, O is not
    lse_rounded,    ///< LSE has two bytes
    d_left_out,     ///< dS = P dP
    scores_differ,  ///< the backward adds scores up in another way, eight products at a time and cut
  };

  explicit EmulatedFlash(Maximum maximum, Fault fault = Fault::none) : maximum_(maximum), fault_(fault) {}

  std::string_view name() const override { return "emulated_flash"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  std::string_view description() const override { return "the arithmetic of GPU kernels on the host"; }
  std::string_view dtypes() const override { return "bf16,fp16"; }
  std::optional<std::string> unsupported(const AttentionProblem& problem, Pass pass) const override;
  std::string kernel(const AttentionProblem&, Pass) const override { return "emulated_flash"; }
  MemoryPlan memory_plan(const AttentionProblem&, bool) const override { return {}; }
  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool for_backward) const override;
  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* saved) const override;

 private:
  [[nodiscard]] std::int64_t visible_keys(const AttentionProblem& problem, std::int64_t query) const;
  [[nodiscard]] float rounded(DType dtype, float p) const;

  Maximum maximum_;
  Fault fault_;
};

}  // namespace warpmeter::attention::conformance
