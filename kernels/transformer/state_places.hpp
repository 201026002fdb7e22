#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/transformer/parameter_layout.hpp"

namespace warpmeter::transformer {

/// Where in its flat arrays the state that training keeps of each parameter lies (moments, masters): as the weights, or
/// packed where that of some parameters alone is kept.
class StatePlaces {
 public:
  /// All of them, as the weights lie.
  explicit StatePlaces(const ParameterLayout& layout);
  /// Those of `kept`, by index, and of no others: joined ones stay together, the others begin on multiples of
  /// ParameterLayout::kAlignment.
  StatePlaces(const ParameterLayout& layout, const std::vector<bool>& kept);

  /// Elements from the arrays' begin; -1: not kept.
  [[nodiscard]] std::int64_t at(std::size_t index) const { return places_.at(index); }
  /// Elements of each flat array, gaps included; at least 1.
  [[nodiscard]] std::int64_t elements() const { return elements_; }

 private:
  std::vector<std::int64_t> places_;
  std::int64_t elements_ = 1;
};

}  // namespace warpmeter::transformer
