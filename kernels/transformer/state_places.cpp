#include "kernels/transformer/state_places.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

StatePlaces::StatePlaces(const ParameterLayout& layout) : elements_(layout.elements()) {
  for (const Parameter& p : layout.parameters()) places_.push_back(p.offset);
}

StatePlaces::StatePlaces(const ParameterLayout& layout, const std::vector<bool>& kept) {
  WM_CHECK(kept.size() == layout.parameters().size(), "kept or not, for every parameter");
  constexpr std::int64_t kAlignment = ParameterLayout::kAlignment;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Parameter& p = layout.parameters()[i];
    const bool behind = p.joined && i > 0 && places_[i - 1] >= 0;
    if (kept[i] && !behind) end = (end + kAlignment - 1) / kAlignment * kAlignment;
    places_.push_back(kept[i] ? end : -1);
    if (kept[i]) end += p.count();
  }
  elements_ = std::max<std::int64_t>(end, 1);
}

}  // namespace warpmeter::transformer
