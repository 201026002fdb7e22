#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {

/// A small tool's table: its own options of every kind, two presets and the shared options.
OptionTable make_fake_table();

/// parse() of `program` and these arguments.
void parse(OptionTable& table, const std::vector<std::string>& arguments);

/// The line of the UsageError that `action` throws, or "(accepted)".
std::string usage_error_of(const std::function<void()>& action);
/// The line that parsing `arguments` gives.
std::string parse_error(const std::vector<std::string>& arguments);

/// A file in a fresh directory, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content, const std::string& name = "bench.toml");
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string directory_;
  std::string path_;
};

}  // namespace warpmeter::harness
