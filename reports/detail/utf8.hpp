#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace warpmeter::reports::detail {

/// Bytes of the UTF-8 sequence that `text` starts with; 0 when it starts with none (then `bad` is how many bytes to
/// replace by one U+FFFD: the longest broken prefix of a sequence, as the Unicode standard recommends).
[[nodiscard]] std::size_t utf8_length(std::string_view text, std::size_t& bad) noexcept;

/// `text` with what is not UTF-8 replaced by U+FFFD.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// Valid UTF-8 in one line for a terminal: line breaks and tabs become spaces, other control characters U+FFFD.
[[nodiscard]] std::string printable(std::string_view text);

/// Code points of valid UTF-8: its width in a terminal but for combining and double-width characters.
[[nodiscard]] std::size_t code_points(std::string_view text) noexcept;

}  // namespace warpmeter::reports::detail
