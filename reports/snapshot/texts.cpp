#include "reports/snapshot/texts.hpp"

#include <algorithm>
#include <cstring>

namespace warpmeter::reports::snapshot {

std::string_view Texts::keep(std::string_view text) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  constexpr std::size_t kOverhead = 80;  // a view, a node of the table, its bucket
  if (capacity_ - used_ < text.size() || chunks_.empty()) {
    capacity_ = std::max(kChunk, text.size());
    used_ = 0;
    chunks_.push_back(std::make_unique<char[]>(capacity_));
    bytes_ += capacity_;
  }
  char* const at = chunks_.back().get() + used_;
  if (!text.empty()) std::memcpy(at, text.data(), text.size());
  used_ += text.size();
  bytes_ += kOverhead;
  return {at, text.size()};
}

}  // namespace warpmeter::reports::snapshot
