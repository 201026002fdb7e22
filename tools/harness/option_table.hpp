#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {

/// One option of a tool. The table of these generates parsing, --help, the documentation's section, the configuration
/// file, --print-config and the rerun lines, so that they cannot drift apart.
///
/// Three kinds: with a metavar, an option that takes a value; without one, a flag whose text is "true" or "false"
/// (`--causal`, `--no-causal`); with a metavar and a negation, a flag that may also be swept: `--causal` is "true",
/// `--no-causal` is "false", `--causal=both` and `--causal=true,false` are "true,false".
struct OptionSpec {
  std::string name{};          ///< "--seq-len"; a flag pair is "--causal" with `negation` "--no-causal"
  std::string short_name{};    ///< "-o" or empty
  std::string negation{};      ///< for flags; "--no-causal" or empty
  std::string metavar{};       ///< "LIST", "SIZE"; empty: a flag
  std::string default_text{};  ///< the text that stands when nothing is given; "" = none. Flags: "true" or "false"
  std::string accepted{};      ///< completes "accepted: ": "whole numbers from 1, lists and ranges (256:16384:x2)"
  std::string help{};          ///< one or two sentences
  std::string example{};       ///< "--seq-len 256:16384:x2"
  std::string group{};         ///< heading in --help: "Configurations", "Measuring", "Output", ...
  bool repeatable = false;     ///< may be given several times (-o); any other option given twice is a usage error
  bool row_option = false;     ///< part of a row's configuration: rerun lines set it to the row's own value
  bool hidden = false;         ///< in no help and no configuration file
  /// About where and how results are written or whether anything runs (-o, --format, --dry-run): in no rerun line.
  bool output_option = false;
  bool action = false;  ///< prints something instead of measuring (--help); command line only
  /// Options that ask for the contrary (--steps against --max-time). Named equally strongly by the user they are a
  /// usage error that names both; else the one from the stronger source stays and the other falls back to its default.
  std::vector<std::string> excludes{};
  /// When set, `excludes` holds only while that option has that text: {"--mode", "train"}.
  std::pair<std::string, std::string> excludes_while{};
  /// Shown as the default in help where default_text alone does not say it ("cold on GPUs, hot on the CPU").
  std::string default_note{};
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
///
/// Options are written `--opt value` or `--opt=value`. The order of force: command line, configuration file, preset,
/// default. The names --preset, --config, --help, --help-markdown, --version, --list, --doctor and --print-config mean
/// what they say in every table that has them; add_shared_options adds them all.
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
  /// What the program takes beside options, for its help's line of usage: "FILE".
  void set_operands(std::string operands);
  /// Lines of "Examples:" in --help.
  void add_examples(std::vector<std::string> lines);

  /// Throws UsageError, and then leaves the table as it was. May be called again (the device, once known, decides the
  /// default preset). Afterwards action() says whether something is to be printed instead of measured. --help and
  /// --version win over every mistake on the same line.
  void parse(int argc, const char* const* argv);
  enum class Action : std::uint8_t { run, help, version, list, print_config, help_markdown, doctor };
  [[nodiscard]] Action action() const;
  /// For a terminal, at most 100 columns.
  [[nodiscard]] std::string help_text() const;
  /// For the documentation: every option with default and example.
  [[nodiscard]] std::string markdown_text() const;
  /// TOML that --config reads back to the same options. What the user named stands open, presets' values and defaults
  /// as comments.
  [[nodiscard]] std::string config_text() const;

  [[nodiscard]] const std::string& program() const;
  [[nodiscard]] const std::vector<OptionSpec>& specs() const;
  [[nodiscard]] const std::vector<Preset>& presets() const;
  [[nodiscard]] const std::string& preset() const;  ///< the one in force, or ""
  [[nodiscard]] OptionSource source(std::string_view name) const;
  /// True when the user named it: on the command line or in the configuration file.
  [[nodiscard]] bool given(std::string_view name) const;
  /// True when it has a text at all: given, by a preset or by default.
  [[nodiscard]] bool has(std::string_view name) const;

  // Readers. `name` must be in the table (WM_CHECK). Those that parse throw UsageError with name, value, accepted.
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view name) const;  ///< of a repeatable option
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::vector<bool> flags(std::string_view name) const;  ///< of a flag that may be swept
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
  /// The same for one value of several.
  [[nodiscard]] UsageError error(std::string_view name, std::string_view value, std::string_view problem) const;

  /// The arguments that repeat one row, unquoted (shell_line quotes): --preset where its values matter beyond the row,
  /// every option that the user set away from its default and that is neither a row_option nor an output option, then
  /// `row_values` ((option, text) pairs; a flag's text is "true" or "false"; an empty text is left out). A row_option
  /// without a row value keeps its own text.
  [[nodiscard]] std::vector<std::string> rerun_arguments(
      const std::vector<std::pair<std::string, std::string>>& row_values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Arguments as one line for a POSIX shell, quoted where needed.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& arguments);

}  // namespace warpmeter::harness
