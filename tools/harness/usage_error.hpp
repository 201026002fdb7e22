#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace warpmeter::harness {

/// Bad usage: exit status 2 after one line, "attn_bench: --seq-len '12x': not a whole number; accepted: ...".
class UsageError : public std::runtime_error {
 public:
  /// `option` as the user writes it ("--seq-len"), `value` as given, `problem` in a few words, `accepted` what would
  /// do.
  UsageError(std::string_view option, std::string_view value, std::string_view problem, std::string_view accepted);
  /// For what no single option is to blame for.
  explicit UsageError(const std::string& line) : std::runtime_error(line) {}
};

}  // namespace warpmeter::harness
