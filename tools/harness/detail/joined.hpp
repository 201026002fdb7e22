#pragma once

#include <string>
#include <string_view>

namespace warpmeter::harness::detail {

/// Words with `separator` between. Stands in for fmt::join, in which GCC 12 sees an overflow at -O3.
template <class Words>
[[nodiscard]] std::string joined(const Words& words, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& word : words) {
    if (!first) text += separator;
    first = false;
    text += word;
  }
  return text;
}

}  // namespace warpmeter::harness::detail
