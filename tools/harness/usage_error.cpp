#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {
namespace {

/// A pasted list of thousands of numbers must not bury the message: its beginning is enough to recognise it.
std::string shortened(std::string_view value) {
  constexpr std::size_t kLongest = 80;
  if (value.size() <= kLongest) return std::string(value);
  std::size_t end = kLongest - 3;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0) == 0x80) --end;  // not within a UTF-8 letter
  return std::string(value.substr(0, end)) + "...";
}

std::string compose(std::string_view option, std::string_view value, std::string_view problem,
                    std::string_view accepted) {
  std::string line(option);
  if (!value.empty()) line.append(" '").append(shortened(value)).append("'");
  line.append(": ").append(problem);
  if (!accepted.empty()) line.append("; accepted: ").append(accepted);
  return one_line(line);
}

}  // namespace

std::string one_line(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += "\\x";
      line += kDigits[byte >> 4];
      line += kDigits[byte & 15];
    } else {
      line += c;
    }
  }
  return line;
}

UsageError::UsageError(std::string_view option, std::string_view value, std::string_view problem,
                       std::string_view accepted)
    : std::runtime_error(compose(option, value, problem, accepted)) {}

}  // namespace warpmeter::harness
