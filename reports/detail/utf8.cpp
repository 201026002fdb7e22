#include "reports/detail/utf8.hpp"

namespace warpmeter::reports::detail {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t& bad) noexcept {
  // Table 3-7 of the Unicode standard: the second byte's range depends on the first.
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  bad = 1;
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;   // overlong
    if (first == 0xED) high = 0x9F;  // surrogates
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;   // overlong
    if (first == 0xF4) high = 0x8F;  // above U+10FFFF
  } else {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) {
      bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t bad = 0;
    const std::size_t length = utf8_length(text, bad);
    if (length == 0) {
      out += kReplacement;
      text.remove_prefix(bad);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

std::string printable(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string out;
  out.reserve(valid.size());
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const auto c = static_cast<unsigned char>(valid[i]);
    if (c == '\r' && i + 1 < valid.size() && valid[i + 1] == '\n') continue;
    if (c == '\n' || c == '\r' || c == '\t') {
      out += ' ';
    } else if (c < 0x20 || c == 0x7F) {
      out += kReplacement;
    } else if (c == 0xC2 && static_cast<unsigned char>(valid[i + 1]) < 0xA0) {  // C1 controls: U+0080 to U+009F
      out += kReplacement;
      ++i;
    } else {
      out += valid[i];
    }
  }
  return out;
}

std::size_t code_points(std::string_view text) noexcept {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace warpmeter::reports::detail
