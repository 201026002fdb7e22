#include "tools/harness/detail/config_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/core.h>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::detail {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-';
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto push = [&](std::uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xc0 | code >> 6);
    push(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    push(0xe0 | code >> 12);
    push(0x80 | (code >> 6 & 0x3f));
    push(0x80 | (code & 0x3f));
  } else {
    push(0xf0 | code >> 18);
    push(0x80 | (code >> 12 & 0x3f));
    push(0x80 | (code >> 6 & 0x3f));
    push(0x80 | (code & 0x3f));
  }
}

/// Digits as TOML writes them: underscores only between digits. Advances past them; false when there are none.
bool skip_digits(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && (is_digit(text[at]) || (text[at] == '_' && at > begin && text[at - 1] != '_'))) ++at;
  return at > begin && text[at - 1] != '_';
}

/// The number without its underscores, or nullopt when `text` is no decimal number of TOML.
std::optional<std::string> number_text(std::string_view text) {
  std::size_t at = 0;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
  const std::size_t whole = at;
  if (!skip_digits(text, at)) return std::nullopt;
  if (text[whole] == '0' && at - whole > 1) return std::nullopt;  // TOML has no leading zeros
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!skip_digits(text, at)) return std::nullopt;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!skip_digits(text, at)) return std::nullopt;
  }
  if (at != text.size()) return std::nullopt;
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  return plain;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }

  std::vector<ConfigEntry> read() {
    std::vector<ConfigEntry> entries;
    for (;;) {
      skip_blank(true);
      if (done()) return entries;
      if (peek() == '[') fail("tables are not accepted; write KEY = VALUE");
      ConfigEntry entry;
      entry.line = line_;
      entry.key = read_key();
      for (const ConfigEntry& other : entries) {
        if (other.key == entry.key) fail(fmt::format("'{}' is set already, on line {}", entry.key, other.line));
      }
      skip_blank(false);
      if (done() || peek() != '=') fail(fmt::format("no = behind '{}'; write KEY = VALUE", entry.key));
      ++at_;
      skip_blank(false);
      read_value(entry);
      skip_blank(false);
      if (!done() && peek() != '\n') {
        fail(fmt::format("'{}' behind the value of {}; put lists in quotes or brackets", rest_of_line(), entry.key));
      }
      entries.push_back(std::move(entry));
    }
  }

 private:
  [[nodiscard]] bool done() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek() const { return text_[at_]; }
  [[nodiscard]] std::string_view rest_of_line() const {
    std::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_);
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    return rest.substr(0, 40);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw UsageError("--config", path_, fmt::format("line {}: {}", line_, problem), "");
  }

  /// Spaces and a comment; line ends too where `lines`.
  void skip_blank(bool lines) {
    while (!done()) {
      const char c = peek();
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '\n' && lines) {
        ++at_;
        ++line_;
      } else if (c == ' ' || c == '\t' || (c == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string read_key() {
    std::string key;
    if (peek() == '"' || peek() == '\'') {
      key = read_string();
    } else {
      while (!done() && is_key_character(peek())) key += text_[at_++];
    }
    if (key.empty()) fail(fmt::format("'{}' is no key; write KEY = VALUE", rest_of_line()));
    if (!done() && peek() == '.') fail(fmt::format("dotted keys are not accepted ('{}')", key + "."));
    return key;
  }

  void read_value(ConfigEntry& entry) {
    if (done() || peek() == '\n') fail(fmt::format("no value behind {} =", entry.key));
    if (peek() != '[') {
      entry.texts.push_back(read_scalar(entry.key));
      return;
    }
    entry.is_array = true;
    ++at_;
    for (;;) {
      skip_blank(true);
      if (done()) fail(fmt::format("the array of {} has no ]", entry.key));
      if (peek() == ']') break;
      if (peek() == '[') fail(fmt::format("an array within the array of {}", entry.key));
      entry.texts.push_back(read_scalar(entry.key));
      skip_blank(true);
      if (done()) continue;  // reported above
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        fail(fmt::format("no comma between the items of {}", entry.key));
      }
    }
    ++at_;
  }

  std::string read_scalar(const std::string& key) {
    if (peek() == '"' || peek() == '\'') return read_string();
    const std::size_t begin = at_;
    while (!done() && (is_key_character(peek()) || peek() == '.' || peek() == '+' || peek() == ':' || peek() == '%')) {
      ++at_;
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "true" || word == "false") return std::string(word);
    if (auto number = number_text(word)) return *number;
    if (word.empty()) fail(fmt::format("'{}' is no value of {}; put text in quotes", rest_of_line(), key));
    fail(fmt::format("{} = {}: put text in quotes", key, word));
  }

  std::string read_string() {
    const char quote = peek();
    if (text_.substr(at_, 3) == std::string(3, quote)) fail("multi-line strings are not accepted");
    ++at_;
    std::string result;
    for (;;) {
      if (done() || peek() == '\n') fail("a string without its closing quote");
      const char c = text_[at_++];
      if (c == quote) return result;
      if (c == '\\' && quote == '"') {
        read_escape(result);
      } else {
        result += c;
      }
    }
  }

  void read_escape(std::string& result) {
    if (done()) fail("a string without its closing quote");
    const char c = text_[at_++];
    switch (c) {
      case 'b':
        result += '\b';
        return;
      case 't':
        result += '\t';
        return;
      case 'n':
        result += '\n';
        return;
      case 'f':
        result += '\f';
        return;
      case 'r':
        result += '\r';
        return;
      case '"':
      case '\\':
        result += c;
        return;
      case 'u':
        read_code_point(result, 4);
        return;
      case 'U':
        read_code_point(result, 8);
        return;
      default:
        fail("an unknown escape in a string; write \\\\ for a backslash, or single quotes around");
    }
  }

  void read_code_point(std::string& result, std::size_t digits) {
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char c = done() ? ' ' : peek();
      const int value = is_digit(c)              ? c - '0'
                        : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                        : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                                 : -1;
      if (value < 0) fail(fmt::format("\\u and \\U take {} hexadecimal digits", digits));
      code = code << 4 | static_cast<std::uint32_t>(value);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) fail("an escape that is no Unicode character");
    append_utf8(result, code);
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path) {
  return Reader(text, path).read();
}

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw UsageError("--config", path, "is a directory", "a TOML file");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("--config", path, std::string("cannot be read: ") + std::strerror(errno), "a TOML file");
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) throw UsageError("--config", path, "cannot be read", "a TOML file");
  if (text.size() > kMaxBytes) throw UsageError("--config", path, "is larger than 1 MiB", "a TOML file");
  return parse_config(text, path);
}

std::string toml_value(std::string_view text) {
  const bool plain = !text.empty() && text.size() <= 15 && is_digit(text.front()) && is_digit(text.back()) &&
                     text.find_first_not_of("0123456789.") == std::string_view::npos && number_text(text).has_value();
  return plain ? std::string(text) : toml_string(text);
}

std::string toml_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace warpmeter::harness::detail
