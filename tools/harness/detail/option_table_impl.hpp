#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/detail/command_line.hpp"
#include "tools/harness/detail/joined.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {
namespace detail {

[[nodiscard]] inline bool is_flag(const OptionSpec& spec) {
  return spec.metavar.empty();
}
[[nodiscard]] inline bool is_swept_flag(const OptionSpec& spec) {
  return !spec.metavar.empty() && !spec.negation.empty();
}

/// True for what a configuration file may set.
[[nodiscard]] inline bool is_configurable(const OptionSpec& spec) {
  return !spec.action && !spec.hidden && spec.name != "--config";
}

/// The text of a flag in its one spelling; nullopt when `text` is none.
[[nodiscard]] inline std::optional<std::string> flag_text(const OptionSpec& spec, std::string_view text) {
  if (text == "true" || text == "false") return std::string(text);
  if (!is_swept_flag(spec)) return std::nullopt;
  if (text == "both" || text == "true,false") return "true,false";
  if (text == "false,true") return "false,true";
  return std::nullopt;
}

[[nodiscard]] inline std::string flag_accepted(const OptionSpec& spec) {
  if (!spec.accepted.empty()) return spec.accepted;
  if (is_swept_flag(spec)) return fmt::format("{0}, {1} or {0}=both", spec.name, spec.negation);
  return spec.negation.empty() ? spec.name : fmt::format("{} or {}", spec.name, spec.negation);
}

/// What stands for an option now, and where it was said ("bench.toml line 3").
struct Entry {
  std::vector<std::string> texts;
  OptionSource source = OptionSource::fallback;
  std::string where;

  [[nodiscard]] std::string text() const { return joined(texts, ","); }
  [[nodiscard]] bool given() const { return source >= OptionSource::config; }
};

[[nodiscard]] inline Entry fallback_of(const OptionSpec& spec) {
  Entry entry;
  if (!spec.default_text.empty()) entry.texts.push_back(spec.default_text);
  return entry;
}

}  // namespace detail

/// The table's state, shared by option_table.cpp (reading) and option_parse.cpp (filling).
struct OptionTable::Impl {
  std::string program;
  std::string summary;
  std::string operands;
  std::vector<OptionSpec> specs;
  std::vector<Preset> presets;
  std::string default_preset;
  std::vector<std::string> examples;

  std::vector<detail::Entry> entries;  ///< beside specs
  std::string preset;                  ///< in force, or ""
  Action action = Action::run;

  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const {
    const auto at = std::find_if(specs.begin(), specs.end(), [&](const OptionSpec& spec) { return spec.name == name; });
    if (at == specs.end()) return std::nullopt;
    return static_cast<std::size_t>(at - specs.begin());
  }
  [[nodiscard]] std::size_t index(std::string_view name) const {
    const auto at = find(name);
    WM_CHECK(at.has_value(), fmt::format("{} has no option {}", program, name));
    return *at;
  }
  [[nodiscard]] const detail::Entry& entry(std::string_view name) const { return entries[index(name)]; }

  [[nodiscard]] UsageError error(std::size_t at, std::string_view value, std::string_view problem,
                                 std::string_view accepted) const {
    const detail::Entry& entry = entries[at];
    if (entry.where.empty()) return {specs[at].name, value, problem, accepted};
    return {specs[at].name, value, fmt::format("{} (from {})", problem, entry.where), accepted};
  }

  /// Reads an option's text with a parser of the grammar; its complaint becomes a usage error.
  template <class Parser>
  auto read(std::string_view name, const Parser& parser, std::string_view accepted = {}) const {
    const std::size_t at = index(name);
    const std::string text = entries[at].text();
    try {
      return parser(text);
    } catch (const GrammarError& problem) {
      throw error(at, text, problem.what(), accepted.empty() ? specs[at].accepted : accepted);
    }
  }

  [[nodiscard]] detail::CommandLine split(const std::vector<std::string>& arguments) const;
  [[noreturn]] void refuse_unknown(const std::string& argument) const;
  [[nodiscard]] std::optional<detail::Entry> from_command_line(std::size_t at, const std::vector<std::string>& on,
                                                               const std::vector<std::string>& off) const;
  void apply_config(const std::string& path, std::vector<detail::Entry>& result) const;
  [[nodiscard]] const Preset& find_preset(std::string_view name, std::size_t option, const detail::Entry& entry) const;
  void apply_preset(const Preset& values, std::vector<detail::Entry>& result) const;
  void resolve_exclusions(std::vector<detail::Entry>& result) const;
  /// True when the option excludes another or is excluded by one.
  [[nodiscard]] bool in_exclusion(std::size_t at) const;
  [[nodiscard]] std::string config_line(std::size_t at) const;
  /// What stands when nothing but `preset` is named.
  [[nodiscard]] std::vector<detail::Entry> baseline(const std::string& name) const;
};

}  // namespace warpmeter::harness
