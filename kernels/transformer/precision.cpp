#include "kernels/transformer/precision.hpp"

#include <algorithm>
#include <array>

namespace warpmeter::transformer {

namespace {

using layers::MasterKind;

constexpr std::array<PrecisionPolicy, 5> kPolicies = {{
    {"fp32", DType::fp32, DType::fp32, MasterKind::none, DType::fp32, DType::fp32, false},
    {"tf32", DType::tf32, DType::fp32, MasterKind::none, DType::fp32, DType::fp32, false},
    {"bf16", DType::bf16, DType::bf16, MasterKind::correction, DType::fp32, DType::fp32, false},
    {"fp16", DType::fp16, DType::fp16, MasterKind::copy, DType::fp32, DType::fp32, true},
    {"bf16_pure", DType::bf16, DType::bf16, MasterKind::none, DType::bf16, DType::bf16, false},
}};

}  // namespace

std::span<const PrecisionPolicy> precision_policies() {
  return kPolicies;
}

const PrecisionPolicy* find_precision(std::string_view name) {
  const auto* found =
      std::find_if(kPolicies.begin(), kPolicies.end(), [&](const PrecisionPolicy& p) { return p.name == name; });
  return found == kPolicies.end() ? nullptr : found;
}

}  // namespace warpmeter::transformer
