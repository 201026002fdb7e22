#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace warpmeter::harness {

/// Thrown by every parser here: `what()` is the problem in a few words ("not a whole number"). The option table adds
/// the option's name, the value and what is accepted. In a list the item at fault is named where there are several.
class GrammarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Most values that a list or range may stand for, so that a slip (1:1000000000:+1) is a message and not a full memory.
inline constexpr std::size_t kMaxListValues = 100'000;

/// "4096": digits only; no sign, space, junk or overflow; in [low, high].
[[nodiscard]] std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high);

/// `16,32,64`, `256:16384:x2`, `128:1024:+128`, mixed: `1,256:1024:x2`. A range starts at its first end and includes
/// its second where the steps hit it; where they do not, it stops at the last value below (`1:10:x2` is 1,2,4,8). Both
/// ends must lie in [low, high]; a range that runs down, a factor below 2 and a step of 0 are refused. Values stand in
/// the order written; repeats are removed. At most kMaxListValues values.
[[nodiscard]] std::vector<std::int64_t> parse_integer_list(std::string_view text, std::int64_t low, std::int64_t high);

/// `4096`, `64KiB`, `1MiB`, `24GiB`, `10MB`, `1.5GiB` where it is a whole number of bytes. Units, case-sensitive: B;
/// KiB MiB GiB TiB (powers of 1024); KB MB GB TB (powers of 1000). From 1 byte.
[[nodiscard]] std::uint64_t parse_size(std::string_view text);
/// A list or range of sizes: `1MiB,10MiB`, `8:1GiB:x2`, `1MiB:4MiB:+512KiB`. Rules as for parse_integer_list.
[[nodiscard]] std::vector<std::uint64_t> parse_size_list(std::string_view text);

/// A finite decimal number in [low, high]: `2`, `0.5`. No sign, no exponent, a digit on both sides of the point.
[[nodiscard]] double parse_number(std::string_view text, double low, double high);
/// `0.5%` or `0.005`, as a fraction in [0, 1].
[[nodiscard]] double parse_fraction(std::string_view text);

/// Words from `accepted`, comma-separated, repeats removed; `all` stands for every one where `allow_all`.
[[nodiscard]] std::vector<std::string> parse_words(std::string_view text, std::span<const std::string_view> accepted,
                                                   bool allow_all = false);
[[nodiscard]] std::string parse_word(std::string_view text, std::span<const std::string_view> accepted);

/// "24.0 GiB", "512 B": for people.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// The shortest text that parse_size reads back to the same bytes: "24GiB", "1536MiB", "4097".
[[nodiscard]] std::string format_exact_size(std::uint64_t bytes);
/// "16,32,64": what parse_integer_list reads back.
[[nodiscard]] std::string format_list(std::span<const std::int64_t> values);
/// "16KiB,1MiB": what parse_size_list reads back.
[[nodiscard]] std::string format_size_list(std::span<const std::uint64_t> values);

/// Those of `known` that a user who wrote `word` probably meant, best first, at most three; none when nothing is near.
[[nodiscard]] std::vector<std::string> nearest_words(std::string_view word, std::span<const std::string_view> known);
/// "did you mean a, b or c?", or "" for none.
[[nodiscard]] std::string did_you_mean(std::span<const std::string> words);

}  // namespace warpmeter::harness
