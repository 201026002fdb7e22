#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace warpmeter::harness {

/// `text` with control characters written as \n, \t or \x1b, so that a user's input cannot break or colour a message.
[[nodiscard]] std::string one_line(std::string_view text);

/// Bad usage: exit status 2 after one line, "attn_bench: --seq-len '12x': not a whole number; accepted: ...". The
/// program's name is put before it by run_tool; what() starts at the option.
class UsageError : public std::runtime_error {
 public:
  /// `option` as the user writes it ("--seq-len"), `value` as given (left out when empty, cut at 80 bytes), `problem`
  /// in a few words, `accepted` what would do (left out when empty).
  UsageError(std::string_view option, std::string_view value, std::string_view problem, std::string_view accepted);
  /// For what no single option is to blame for.
  explicit UsageError(std::string_view line) : std::runtime_error(one_line(line)) {}
};

}  // namespace warpmeter::harness
