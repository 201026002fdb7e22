#pragma once

#include "kernels/attention/detail/scores.hpp"
#include "kernels/runtime/check.hpp"

/// What naive and fused say of themselves on either device.
namespace warpmeter::attention::detail {

struct ScoreMethod {
  std::string_view name, description;
};
inline constexpr ScoreMethod kNaive = {
    "naive", "one operation at a time, as an eager framework runs it; holds scores, masked scores and P"};
inline constexpr ScoreMethod kFused = {
    "fused", "what a compiler makes of naive: scale, mask and softmax in one pass, in place; holds P"};

/// A method on a device: takes every valid problem, tf32 on CUDA alone, and keeps P for the backward.
class ScoreAttention : public Implementation {
 public:
  std::string_view name() const final { return method_.name; }
  DeviceKind device_kind() const final { return device_; }
  std::string_view description() const final { return method_.description; }
  std::string_view dtypes() const final { return on_cpu() ? "fp32,bf16,fp16" : "fp32,tf32,bf16,fp16"; }

  std::optional<std::string> unsupported(const AttentionProblem& problem, Pass) const final {
    if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
    if (on_cpu() && problem.dtype == DType::tf32) return "tf32 is a CUDA compute mode";
    return std::nullopt;
  }

  ScorePrecision score_precision() const final { return ScorePrecision::storage; }

  std::string kernel(const AttentionProblem&, Pass) const final {
    return std::string(method_.name) + (on_cpu() ? "_cpu" : "_cuda");
  }

 protected:
  ScoreAttention(const ScoreMethod& method, DeviceKind device) : method_(method), device_(device) {}

  /// What this method's forward kept.
  [[nodiscard]] const Scores& probabilities(const Saved* saved) const {
    const auto* kept = dynamic_cast<const SavedProbabilities*>(saved);
    WM_CHECK(kept != nullptr, std::string(method_.name) + "'s backward needs what its forward kept");
    return kept->p();
  }

 private:
  [[nodiscard]] bool on_cpu() const { return device_ == DeviceKind::cpu; }

  const ScoreMethod& method_;
  DeviceKind device_;
};

}  // namespace warpmeter::attention::detail
