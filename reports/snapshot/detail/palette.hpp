#pragma once

#include <string_view>

namespace warpmeter::reports::snapshot::detail {

/// A category's colour, as in assets/timeline.js; `spare` counts the categories that have none of their own.
[[nodiscard]] inline std::string_view color_of(std::string_view category, std::size_t& spare) {
  struct Entry {
    std::string_view category, color;
  };
  constexpr Entry kColors[] = {{"parameters", "#4e79a7"},  {"gradients", "#e15759"}, {"optimizer state", "#f28e2b"},
                               {"activations", "#59a14f"}, {"logits", "#b07aa1"},    {"workspace", "#a0785a"},
                               {"inputs", "#76b7b2"},      {"unknown", "#a9a9a9"}};
  constexpr std::string_view kSpare[] = {"#d4a72c", "#ff9da7", "#6b7fd7", "#3aa3a0", "#c95f9b", "#8f9b3f"};
  for (const Entry& entry : kColors) {
    if (entry.category == category) return entry.color;
  }
  return kSpare[spare++ % (sizeof(kSpare) / sizeof(kSpare[0]))];
}

}  // namespace warpmeter::reports::snapshot::detail
