#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warpmeter::reports::snapshot {

/// Index of a text in a Texts.
using TextId = std::uint32_t;

/// Each text once. Text 0 is the empty one. Views stay valid as long as the Texts lives, also when it is moved.
class Texts {
 public:
  Texts() { (void)intern(""); }
  Texts(Texts&&) = default;
  Texts& operator=(Texts&&) = default;

  [[nodiscard]] TextId intern(std::string_view text) {
    const auto found = ids_.find(text);
    if (found != ids_.end()) return found->second;
    const std::string_view kept = keep(text);
    const auto id = static_cast<TextId>(views_.size());
    views_.push_back(kept);
    ids_.emplace(kept, id);
    return id;
  }
  [[nodiscard]] std::string_view operator[](TextId id) const { return views_[id]; }
  [[nodiscard]] std::size_t size() const { return views_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  ///< of memory, about

 private:
  std::string_view keep(std::string_view text);

  std::vector<std::unique_ptr<char[]>> chunks_;
  std::size_t used_ = 0;      ///< of the last chunk
  std::size_t capacity_ = 0;  ///< of the last chunk
  std::size_t bytes_ = 0;
  std::vector<std::string_view> views_;
  std::unordered_map<std::string_view, TextId> ids_;
};

}  // namespace warpmeter::reports::snapshot
