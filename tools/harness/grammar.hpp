#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace warpmeter::harness {

/// Thrown by every parser here: `what()` is the problem in a few words ("not a whole number"). The option table adds
/// the option's name, the value and what is accepted.
class GrammarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "4096": digits only; no sign, space, junk or overflow; in [low, high].
[[nodiscard]] std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high);

/// `16,32,64`, `256:16384:x2`, `128:1024:+128` (both ends included where hit), mixed: `1,256:1024:x2`. In the order
/// written; repeats removed. At most 100,000 values.
[[nodiscard]] std::vector<std::int64_t> parse_integer_list(std::string_view text, std::int64_t low, std::int64_t high);

/// `4096`, `64KiB`, `1MiB`, `24GiB`, `10MB` (decimal), `1.5GiB` where it is a whole number of bytes. From 1 byte.
[[nodiscard]] std::uint64_t parse_size(std::string_view text);
/// A list or range of sizes: `1MiB,10MiB`, `8:1GiB:x2`.
[[nodiscard]] std::vector<std::uint64_t> parse_size_list(std::string_view text);

/// A finite decimal number in [low, high]: `2`, `0.5`.
[[nodiscard]] double parse_number(std::string_view text, double low, double high);
/// `0.5%` or `0.005`, as a fraction.
[[nodiscard]] double parse_fraction(std::string_view text);

/// Words from `accepted`, comma-separated, repeats removed; `all` stands for every one where `allow_all`.
[[nodiscard]] std::vector<std::string> parse_words(std::string_view text, std::span<const std::string_view> accepted,
                                                   bool allow_all = false);
[[nodiscard]] std::string parse_word(std::string_view text, std::span<const std::string_view> accepted);

/// "24.0 GiB", "512 B": for people.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

}  // namespace warpmeter::harness
