#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warpmeter::harness::detail {

/// `key = value` of a configuration file, the value as option text: "true", "0.5", the characters of a string.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> texts;  ///< one, or the items of an array
  bool is_array = false;
  int line = 0;  ///< from 1
};

/// Reads the part of TOML that options need: comments, bare and quoted keys, basic and literal strings on one line,
/// decimal integers, floats, truth values, arrays of those over any number of lines. Tables, dotted keys, dates and
/// multi-line strings are refused. CLI11's own reader is not used: it takes malformed lines for values, knows no line
/// numbers and, in 2.1, no escapes.
/// Throws UsageError, one line: --config, the file, the line's number and what is wrong.
[[nodiscard]] std::vector<ConfigEntry> read_config_file(const std::string& path);
/// The same of a text; `path` is for messages.
[[nodiscard]] std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path);

/// A text as TOML: bare where it is a plain integer or decimal number, else a basic string.
[[nodiscard]] std::string toml_value(std::string_view text);
/// Always a basic string.
[[nodiscard]] std::string toml_string(std::string_view text);

}  // namespace warpmeter::harness::detail
