#include "kernels/transformer/config.hpp"

#include <algorithm>
#include <array>

namespace warpmeter::transformer {

namespace {

// Dimensions of the course behind the notes; tiny is ours.
constexpr std::array<NamedSize, 6> kSizes = {{
    {"tiny", {10'000, 64, 256, 2, 4}},
    {"small", {10'000, 768, 3072, 12, 12}},
    {"medium", {10'000, 1024, 4096, 24, 16}},
    {"large", {10'000, 1280, 5120, 36, 20}},
    {"xl", {10'000, 1600, 6400, 48, 25}},
    {"7B", {10'000, 2560, 10'240, 32, 32}},
}};

}  // namespace

std::int64_t ModelConfig::parameters() const {
  return (tied_head ? 1 : 2) * vocab * d_model + layers * (4 * d_model * d_model + 3 * d_model * d_ff + 2 * d_model) +
         d_model;
}

double ModelConfig::forward_flops(std::int64_t batch, std::int64_t context) const {
  const auto tokens = static_cast<double>(batch) * static_cast<double>(context);
  const auto linear = static_cast<double>(layers) * static_cast<double>(4 * d_model * d_model + 3 * d_model * d_ff) +
                      static_cast<double>(vocab) * static_cast<double>(d_model);
  const double pairs = static_cast<double>(context) * (static_cast<double>(context) + 1) / 2;
  return 2 * tokens * linear +
         4 * static_cast<double>(layers) * static_cast<double>(batch) * pairs * static_cast<double>(d_model);
}

std::string invalid_reason(const ModelConfig& c) {
  const auto positive = [](const char* what, std::int64_t value) {
    return value >= 1 ? std::string() : std::string(what) + " must be at least 1, not " + std::to_string(value);
  };
  for (const std::string& reason :
       {positive("vocab", c.vocab), positive("d_model", c.d_model), positive("d_ff", c.d_ff),
        positive("layers", c.layers), positive("heads", c.heads)}) {
    if (!reason.empty()) return reason;
  }
  if (c.d_model % c.heads != 0) {
    return std::to_string(c.heads) + " heads do not divide d_model " + std::to_string(c.d_model);
  }
  if (c.head_dim() % 2 != 0) {
    return "d_model " + std::to_string(c.d_model) + " over " + std::to_string(c.heads) + " heads gives head_dim " +
           std::to_string(c.head_dim()) + ", and RoPE turns pairs: it must be even";
  }
  if (c.head_dim() > 256) {
    return "d_model " + std::to_string(c.d_model) + " over " + std::to_string(c.heads) + " heads gives head_dim " +
           std::to_string(c.head_dim()) + ", and head_dim is at most 256";
  }
  return "";
}

std::span<const NamedSize> named_sizes() {
  return kSizes;
}

const NamedSize* find_size(std::string_view name) {
  const auto* found = std::find_if(kSizes.begin(), kSizes.end(), [&](const NamedSize& s) { return s.name == name; });
  return found == kSizes.end() ? nullptr : found;
}

}  // namespace warpmeter::transformer
