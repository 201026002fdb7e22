#include "reports/detail/cell.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "reports/detail/json_text.hpp"
#include "reports/detail/utf8.hpp"

namespace warpmeter::reports::detail {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_memory(std::string_view name) {
  return ends_with_any(name, {"_kib", "_mib", "_gib"});
}
bool is_percent(std::string_view name) {
  return ends_with_any(name, {"_share", "_noise", "_mfu"});
}

/// Power of ten of the leading digit after rounding to `digits` significant ones: 999.96 with 4 gives 3.
int decimal_exponent(double magnitude, int digits) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, std::chars_format::scientific, digits - 1);
  int exponent = 0;
  const char* e = std::find(static_cast<const char*>(buffer), static_cast<const char*>(end.ptr), 'e') + 1;
  if (*e == '+') ++e;
  std::from_chars(e, end.ptr, exponent);
  return exponent;
}

void trim_zeros(std::string& text) {
  if (text.find('.') == std::string::npos) return;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
}

std::string fixed(double number, int decimals) {
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed, decimals);
  std::string text(buffer, end.ptr);
  trim_zeros(text);
  return text == "-0" ? "0" : text;
}

std::string scientific(double number) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific, 3);
  std::string text(buffer, end.ptr);
  const std::size_t e = text.find('e');
  std::string mantissa = text.substr(0, e);
  trim_zeros(mantissa);
  return mantissa + text.substr(e);
}

/// At least four significant digits: every digit before the point stays.
std::string four_digits(double number) {
  if (number == 0) return "0";
  const int exponent = decimal_exponent(std::fabs(number), 4);
  if (exponent < -4 || exponent >= 9) return scientific(number);
  return fixed(number, std::max(0, 3 - exponent));
}

std::string memory(double number) {
  if (number == 0) return "0";
  const int exponent = decimal_exponent(std::fabs(number), 6);
  if (exponent < -5 || exponent >= 12) return scientific(number);
  // Below 0.01 two decimals would show 512 B as nothing: two significant digits instead.
  if (exponent < -2) return fixed(number, 1 - exponent);
  return fixed(number, std::clamp(5 - exponent, 0, 2));
}

std::string percent(double fraction) {
  const double number = fraction * 100;
  if (std::fabs(number) >= 1e9) return scientific(number) + '%';
  if (number != 0 && std::fabs(number) < 0.01) return four_digits(number) + '%';
  return fixed(number, std::fabs(number) >= 9.995 ? 1 : 2) + '%';
}

std::string format_number(std::string_view name, const Value& value) {
  const double number = *value.as_number();
  if (is_memory(name)) return memory(number);
  if (is_percent(name)) return percent(number);
  if (has_unit(name) && !name.ends_with("_n") && !name.ends_with("_bytes")) return four_digits(number);
  if (const auto* integer = value.as_int()) return std::to_string(*integer);
  // A whole double looks the same before and after a file, where it may come back as an integer.
  if (number == std::floor(number) && std::fabs(number) < 0x1p63)
    return std::to_string(static_cast<std::int64_t>(number));
  return four_digits(number);
}

}  // namespace

std::string format_cell(std::string_view name, const Value& value) {
  if (const auto* text = value.as_string()) return printable(*text);
  if (value.as_number()) return format_number(name, value);
  if (value.is_null() || value.as_double() != nullptr) return "";
  std::string json;
  append_json(json, value);
  return printable(json);
}

bool has_unit(std::string_view name) {
  if (is_memory(name) || is_percent(name)) return true;
  return ends_with_any(name, {"_ms", "_us", "_ns", "_s", "_flops", "_gflops", "_tflops", "_bytes", "_gbps", "_gibps",
                              "_GiBps", "_speedup", "_mhz", "_error", "_tolerance", "_n"});
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '\\' || c == '|' || c == '`' || c == '*' || c == '<' || c == '[') out += '\\';
    out += c;
  }
  return out;
}

std::string code_span(std::string_view text) {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  const std::string_view pad = text.starts_with('`') || text.ends_with('`') ? " " : "";
  std::string out = fence;
  out += pad;
  out += text;
  out += pad;
  return out + fence;
}

}  // namespace warpmeter::reports::detail
