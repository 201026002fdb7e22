#include "tools/harness/grammar.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>

#include <fmt/core.h>

namespace warpmeter::harness {
namespace {

__extension__ using Wide = unsigned __int128;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

/// Refuses what no number here may have, with the reason that helps most.
void check_unsigned(std::string_view text) {
  if (text.empty()) throw GrammarError("empty");
  if (text.size() > 1 && is_digit(text[1])) {
    if (text[0] == '-') throw GrammarError("negative");
    if (text[0] == '+') throw GrammarError("a sign is not accepted");
  }
}

/// Digits as a number; nullopt when it does not fit.
std::optional<std::uint64_t> digits_value(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

/// What a list of numbers is made of: how one is read, and the bounds that both ends of a range keep.
template <class T, class ParseItem>
std::vector<T> parse_list(std::string_view text, const ParseItem& parse_item) {
  if (text.empty()) throw GrammarError("empty");
  std::vector<T> values;
  std::unordered_set<T> seen;
  std::size_t produced = 0;
  const auto append = [&](T value) {
    if (++produced > kMaxListValues) throw GrammarError(fmt::format("stands for more than {} values", kMaxListValues));
    if (seen.insert(value).second) values.push_back(value);
  };
  const auto parse_range = [&](const std::vector<std::string_view>& parts) {
    if (parts.size() != 3 || parts[2].size() < 2 || (parts[2][0] != 'x' && parts[2][0] != '+')) {
      throw GrammarError("not a range: write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP");
    }
    const T first = parse_item(parts[0]);
    const T last = parse_item(parts[1]);
    const std::string_view amount = parts[2].substr(1);
    if (first > last) throw GrammarError("the range runs down");
    if (parts[2][0] == 'x') {
      if (!all_digits(amount)) throw GrammarError("the factor is not a whole number");
      const auto factor = digits_value(amount);
      if (factor && *factor < 2) throw GrammarError("the factor must be at least 2");
      if (first == 0) throw GrammarError("a range by a factor cannot start at 0");
      append(first);
      // A factor too large for T passes the end at once.
      if (!factor || *factor > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return;
      for (T value = first; value <= last / static_cast<T>(*factor);) append(value *= static_cast<T>(*factor));
    } else {
      if (all_digits(amount) && amount.find_first_not_of('0') == std::string_view::npos) {
        throw GrammarError("the step must be at least 1");
      }
      T step = 0;
      if constexpr (std::is_same_v<T, std::uint64_t>) {
        step = parse_size(amount);
      } else {
        if (!all_digits(amount)) throw GrammarError("the step is not a whole number");
        const auto parsed = digits_value(amount);
        const auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
        step = static_cast<T>(std::min(parsed.value_or(most), most));
      }
      append(first);
      for (T value = first; last - value >= step;) append(value += step);
    }
  };
  const auto items = split(text, ',');
  for (const std::string_view item : items) {
    try {
      if (item.empty()) throw GrammarError("an item is empty");
      const auto parts = split(item, ':');
      if (parts.size() > 1) {
        parse_range(parts);
      } else {
        append(parse_item(item));
      }
    } catch (const GrammarError& error) {
      if (items.size() == 1 || item.empty() || produced > kMaxListValues) throw;
      throw GrammarError(fmt::format("'{}': {}", item, error.what()));
    }
  }
  return values;
}

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<Unit, 9> kUnits{{{"B", 1},
                                      {"KiB", std::uint64_t{1} << 10},
                                      {"MiB", std::uint64_t{1} << 20},
                                      {"GiB", std::uint64_t{1} << 30},
                                      {"TiB", std::uint64_t{1} << 40},
                                      {"KB", 1'000},
                                      {"MB", 1'000'000},
                                      {"GB", 1'000'000'000},
                                      {"TB", 1'000'000'000'000}}};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::uint64_t unit_bytes(std::string_view text) {
  if (text.empty()) return 1;
  for (const Unit& unit : kUnits) {
    if (text == unit.name) return unit.bytes;
  }
  const std::string folded = lower(text);
  for (const Unit& unit : kUnits) {
    if (folded == lower(unit.name))
      throw GrammarError(fmt::format("unknown unit '{}' (did you mean {}?)", text, unit.name));
  }
  for (const char letter : {'K', 'M', 'G', 'T'}) {
    const auto small = static_cast<char>(letter - 'A' + 'a');
    if (folded == std::string{small} || folded == std::string{small, 'i'}) {
      throw GrammarError(fmt::format("unknown unit '{}' (did you mean {}iB or {}B?)", text, letter, letter));
    }
  }
  throw GrammarError(fmt::format("unknown unit '{}'", text));
}

/// Digits with at most one point between them.
bool is_decimal(std::string_view text) {
  const auto parts = split(text, '.');
  return parts.size() <= 2 && std::all_of(parts.begin(), parts.end(), all_digits);
}

/// `text` is decimal; `exponent` shifts its point before it is rounded, so that 0.5% is exactly 0.005.
double decimal_value(std::string_view text, int exponent) {
  const std::string shifted = fmt::format("{}e{}", text, exponent);
  double value = 0;
  const auto [end, error] = std::from_chars(shifted.data(), shifted.data() + shifted.size(), value);
  if (error == std::errc::result_out_of_range) {
    const std::string_view whole = text.substr(0, text.find('.'));
    const bool tiny = whole.find_first_not_of('0') == std::string_view::npos;
    return tiny ? 0 : std::numeric_limits<double>::infinity();
  }
  return value;
}

double checked(double value, double low, double high) {
  if (value < low) throw GrammarError(fmt::format("below {:g}", low));
  if (value > high || !std::isfinite(value)) throw GrammarError(fmt::format("above {:g}", high));
  return value;
}

/// Edits that turn one word into the other: insert, drop, replace a letter, swap two neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

std::string unknown_word(std::string_view word, std::span<const std::string_view> accepted) {
  const std::string guess = did_you_mean(nearest_words(word, accepted));
  return guess.empty() ? "unknown" : fmt::format("unknown ({})", guess);
}

}  // namespace

std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high) {
  check_unsigned(text);
  if (!all_digits(text)) {
    if (text[0] == '-' && all_digits(text.substr(1))) throw GrammarError("negative");
    throw GrammarError("not a whole number");
  }
  const auto value = digits_value(text);
  if (!value || *value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
      static_cast<std::int64_t>(*value) > high) {
    throw GrammarError(fmt::format("above {}", high));
  }
  const auto result = static_cast<std::int64_t>(*value);
  if (result < low) throw GrammarError(fmt::format("below {}", low));
  return result;
}

std::vector<std::int64_t> parse_integer_list(std::string_view text, std::int64_t low, std::int64_t high) {
  return parse_list<std::int64_t>(text, [&](std::string_view item) { return parse_integer(item, low, high); });
}

std::uint64_t parse_size(std::string_view text) {
  check_unsigned(text);
  const auto number_end = std::find_if_not(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.'; });
  const std::string_view number = text.substr(0, static_cast<std::size_t>(number_end - text.begin()));
  const std::string_view unit = text.substr(number.size());
  if (!is_decimal(number)) throw GrammarError("not a size");
  const std::uint64_t scale = unit_bytes(unit);

  const std::size_t point = number.find('.');
  const auto whole = digits_value(number.substr(0, point));
  std::string_view decimals = point == std::string_view::npos ? "" : number.substr(point + 1);
  while (!decimals.empty() && decimals.back() == '0') decimals.remove_suffix(1);
  if (!whole) throw GrammarError("too large");
  // 18 digits keep the products below within 128 bits.
  constexpr std::size_t kMaxDecimals = 18;
  if (decimals.size() > kMaxDecimals) throw GrammarError("not a whole number of bytes");
  Wide bytes = static_cast<Wide>(*whole) * scale;
  if (!decimals.empty()) {
    Wide power = 1;
    for (std::size_t i = 0; i < decimals.size(); ++i) power *= 10;
    const Wide scaled = static_cast<Wide>(*digits_value(decimals)) * scale;
    if (scaled % power != 0) throw GrammarError("not a whole number of bytes");
    bytes += scaled / power;
  }
  if (bytes > std::numeric_limits<std::uint64_t>::max()) throw GrammarError("too large");
  if (bytes == 0) throw GrammarError("below 1 byte");
  return static_cast<std::uint64_t>(bytes);
}

std::vector<std::uint64_t> parse_size_list(std::string_view text) {
  return parse_list<std::uint64_t>(text, [](std::string_view item) { return parse_size(item); });
}

double parse_number(std::string_view text, double low, double high) {
  check_unsigned(text);
  if (!is_decimal(text)) throw GrammarError("not a decimal number");
  return checked(decimal_value(text, 0), low, high);
}

double parse_fraction(std::string_view text) {
  check_unsigned(text);
  const bool percent = text.back() == '%';
  const std::string_view number = percent ? text.substr(0, text.size() - 1) : text;
  if (!is_decimal(number)) throw GrammarError("neither a fraction nor a percentage");
  const double value = decimal_value(number, percent ? -2 : 0);
  if (value > 1) {
    if (percent) throw GrammarError("above 100%");
    throw GrammarError(value <= 100 ? fmt::format("above 1 (did you mean {}%?)", number) : "above 1");
  }
  return value;
}

std::string parse_word(std::string_view text, std::span<const std::string_view> accepted) {
  if (text.empty()) throw GrammarError("empty");
  if (std::find(accepted.begin(), accepted.end(), text) == accepted.end()) {
    throw GrammarError(unknown_word(text, accepted));
  }
  return std::string(text);
}

std::vector<std::string> parse_words(std::string_view text, std::span<const std::string_view> accepted,
                                     bool allow_all) {
  if (text.empty()) throw GrammarError("empty");
  std::vector<std::string> words;
  const auto append = [&](std::string_view word) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.emplace_back(word);
  };
  const auto items = split(text, ',');
  for (const std::string_view item : items) {
    if (item.empty()) throw GrammarError("an item is empty");
    if (allow_all && item == "all") {
      for (const std::string_view word : accepted) append(word);
    } else if (std::find(accepted.begin(), accepted.end(), item) != accepted.end()) {
      append(item);
    } else if (items.size() == 1) {
      throw GrammarError(unknown_word(item, accepted));
    } else {
      throw GrammarError(fmt::format("'{}' is {}", item, unknown_word(item, accepted)));
    }
  }
  return words;
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kNames{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 and above would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string format_exact_size(std::uint64_t bytes) {
  for (std::size_t i = 4; i > 0; --i) {
    if (bytes != 0 && bytes % kUnits[i].bytes == 0) return fmt::format("{}{}", bytes / kUnits[i].bytes, kUnits[i].name);
  }
  return fmt::format("{}", bytes);
}

std::string format_list(std::span<const std::int64_t> values) {
  std::string text;
  for (const std::int64_t value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

std::string format_size_list(std::span<const std::uint64_t> values) {
  std::string text;
  for (const std::uint64_t value : values) {
    if (!text.empty()) text += ',';
    text += format_exact_size(value);
  }
  return text;
}

std::vector<std::string> nearest_words(std::string_view word, std::span<const std::string_view> known) {
  constexpr std::size_t kMost = 3;
  constexpr std::size_t kLongest = 64;  // nothing that long is a slip of the pen
  std::vector<std::pair<std::size_t, std::string_view>> scored;
  if (word.empty() || word.size() > kLongest) return {};
  // The dashes of options count for nothing, so that "seq-len" and "-seq-len" are near "--seq-len".
  const auto fold = [](std::string_view text) {
    return lower(text.substr(std::min(text.find_first_not_of('-'), text.size())));
  };
  const std::string folded = fold(word);
  if (folded.empty()) return {};
  for (const std::string_view candidate : known) {
    const std::string other = fold(candidate);
    const std::size_t distance = edit_distance(folded, other);
    const std::size_t letters = std::min(folded.size(), other.size());
    const bool starts = folded.size() >= 3 && letters >= 3 && (other.starts_with(folded) || folded.starts_with(other));
    if (starts) {
      scored.emplace_back(std::min<std::size_t>(distance, 2), candidate);
    } else if (distance <= std::max<std::size_t>(1, letters / 3)) {
      scored.emplace_back(distance, candidate);
    }
  }
  std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> nearest;
  for (const auto& [distance, candidate] : scored) {
    // A clearly worse guess beside a good one only confuses.
    if (nearest.size() == kMost || distance > scored.front().first + 1) break;
    nearest.emplace_back(candidate);
  }
  return nearest;
}

std::string did_you_mean(std::span<const std::string> words) {
  if (words.empty()) return "";
  std::string text = "did you mean ";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text + "?";
}

}  // namespace warpmeter::harness
