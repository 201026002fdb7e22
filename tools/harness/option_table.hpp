#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {

/// One option of a tool. The table of these generates parsing, --help, the configuration file, --print-config and the
/// rerun lines, so that they cannot drift apart.
struct OptionSpec {
  std::string name;          ///< "--seq-len"; a flag pair is "--causal" with `negation` "--no-causal"
  std::string short_name;    ///< "-o" or empty
  std::string negation;      ///< for flags; "--no-causal" or empty
  std::string metavar;       ///< "LIST", "SIZE"; empty: a flag
  std::string default_text;  ///< the text that stands when nothing is given; "" = none. Flags: "true" or "false"
  std::string accepted;      ///< completes "accepted: ": "whole numbers from 1, lists and ranges (256:16384:x2)"
  std::string help;          ///< one or two sentences
  std::string example;       ///< "--seq-len 256:16384:x2"
  std::string group;         ///< heading in --help: "Configurations", "Measuring", "Output", ...
  bool repeatable = false;   ///< may be given several times (-o)
  bool row_option = false;   ///< part of a row's configuration: rerun lines set it to the row's own value
  bool hidden = false;
};

/// Option texts that --preset NAME stands for; anything given beside it wins.
struct Preset {
  std::string name;
  std::string description;
  std::vector<std::pair<std::string, std::string>> values;  ///< ("--seq-len", "256,1024")
};

/// Where an option's text came from; later ones win.
enum class OptionSource : std::uint8_t { fallback, preset, config, command_line };

/// Parses a command line into option texts and reads them as values. Wraps CLI11.
class OptionTable {
 public:
  OptionTable(std::string program, std::string summary);
  ~OptionTable();
  OptionTable(OptionTable&&) noexcept;
  OptionTable& operator=(OptionTable&&) noexcept;

  void add(OptionSpec spec);
  /// `default_preset` is in force when neither --preset nor --config names one ("" = none).
  void add_presets(std::vector<Preset> presets);
  void set_default_preset(std::string name);
  /// Lines of "Examples:" in --help.
  void add_examples(std::vector<std::string> lines);

  /// Throws UsageError. Afterwards action() says whether something is to be printed instead of measured.
  void parse(int argc, const char* const* argv);
  enum class Action : std::uint8_t { run, help, version, list, print_config };
  [[nodiscard]] Action action() const;
  [[nodiscard]] std::string help_text() const;
  [[nodiscard]] std::string config_text() const;  ///< TOML that --config reads back to the same options

  [[nodiscard]] const std::vector<OptionSpec>& specs() const;
  [[nodiscard]] const std::vector<Preset>& presets() const;
  [[nodiscard]] OptionSource source(std::string_view name) const;
  /// True when the user named it: on the command line or in the configuration file.
  [[nodiscard]] bool given(std::string_view name) const;

  // Readers. `name` must be in the table (WM_CHECK). Those that parse throw UsageError with name, value, accepted.
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view name) const;  ///< of a repeatable option
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t low, std::int64_t high) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name, std::int64_t low, std::int64_t high) const;
  [[nodiscard]] std::uint64_t size(std::string_view name) const;
  [[nodiscard]] std::vector<std::uint64_t> sizes(std::string_view name) const;
  [[nodiscard]] double number(std::string_view name, double low, double high) const;
  [[nodiscard]] double fraction(std::string_view name) const;
  [[nodiscard]] std::string word(std::string_view name, std::span<const std::string_view> accepted) const;
  [[nodiscard]] std::vector<std::string> words(std::string_view name, std::span<const std::string_view> accepted,
                                               bool allow_all = false) const;
  /// UsageError for option `name` with its value and accepted text: for checks across options.
  [[nodiscard]] UsageError error(std::string_view name, std::string_view problem) const;

  /// The arguments that repeat one row: every non-default option that is not a row_option, output or preset option,
  /// then `row_values` ((option, text) pairs; a flag's text is "true" or "false"). Shell-quoted where needed.
  [[nodiscard]] std::vector<std::string> rerun_arguments(
      const std::vector<std::pair<std::string, std::string>>& row_values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Arguments as one shell line, quoted where needed.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& arguments);

}  // namespace warpmeter::harness
