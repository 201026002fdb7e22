#include <algorithm>

#include "tools/harness/detail/config_file.hpp"
#include "tools/harness/detail/option_table_impl.hpp"

namespace warpmeter::harness {

using Action = OptionTable::Action;
using detail::Entry;
using detail::fallback_of;
using detail::flag_accepted;
using detail::flag_text;
using detail::is_flag;
using detail::is_swept_flag;
using detail::joined;

/// Every option's name first, then the negations of those that have one.
detail::CommandLine OptionTable::Impl::split(const std::vector<std::string>& arguments) const {
  std::vector<detail::Switch> switches;
  for (const OptionSpec& spec : specs) {
    switches.push_back({spec.name, spec.short_name, !is_flag(spec), is_swept_flag(spec)});
  }
  for (const OptionSpec& spec : specs) {
    if (!spec.negation.empty()) switches.push_back({spec.negation, "", false, false});
  }
  return detail::split_command_line(switches, arguments);
}

void OptionTable::Impl::refuse_unknown(const std::string& argument) const {
  if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
    throw UsageError(fmt::format("'{}': unexpected; options are written --name value", argument));
  }
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string_view> known;
  for (const OptionSpec& spec : specs) {
    if (spec.hidden) continue;
    known.push_back(spec.name);
    if (!spec.negation.empty()) known.push_back(spec.negation);
  }
  const std::string guess = did_you_mean(nearest_words(name, known));
  throw UsageError(name, "", guess.empty() ? "unknown option; --help lists them" : "unknown option; " + guess, "");
}

std::optional<Entry> OptionTable::Impl::from_command_line(std::size_t at, const std::vector<std::string>& on,
                                                          const std::vector<std::string>& off) const {
  const OptionSpec& spec = specs[at];
  if (on.empty() && off.empty()) return std::nullopt;
  if (!on.empty() && !off.empty()) {
    throw UsageError(fmt::format("{} and {}: contradict each other; accepted: one of them", spec.name, spec.negation));
  }
  Entry result;
  result.source = OptionSource::command_line;
  if (!off.empty()) {
    for (const std::string& value : off) {
      if (!value.empty()) throw UsageError(spec.negation, value, "takes no value", flag_accepted(spec));
    }
    result.texts = {"false"};
  } else if (is_flag(spec) || is_swept_flag(spec)) {
    for (const std::string& value : on) {
      const auto text = value.empty() ? "true" : flag_text(spec, value);
      if (!text) {
        throw UsageError(spec.name, value, is_flag(spec) ? "takes no value" : "not a truth value", flag_accepted(spec));
      }
      if (!result.texts.empty() && result.texts.front() != *text) {
        throw UsageError(fmt::format("{}: given as {} and as {}; accepted: {}", spec.name, result.texts.front(), *text,
                                     flag_accepted(spec)));
      }
      result.texts = {*text};
    }
  } else {
    for (const std::string& value : on) {
      if (value.empty()) throw UsageError(spec.name, "", "needs a value", spec.accepted);
    }
    if (on.size() > 1 && !spec.repeatable) {
      throw UsageError(spec.name, joined(on, "', '"), "given more than once",
                       spec.accepted.empty() ? "one value" : "once; " + spec.accepted);
    }
    result.texts = on;
  }
  return result;
}

void OptionTable::Impl::apply_config(const std::string& path, std::vector<Entry>& result) const {
  std::vector<std::string_view> known;
  for (const OptionSpec& spec : specs) {
    if (detail::is_configurable(spec)) known.push_back(std::string_view(spec.name).substr(2));
  }
  for (const detail::ConfigEntry& item : detail::read_config_file(path)) {
    const auto refuse = [&](const std::string& problem, std::string_view accepted) {
      throw UsageError("--config", path, fmt::format("line {}: {}", item.line, problem), accepted);
    };
    for (const OptionSpec& spec : specs) {
      if (!spec.negation.empty() && spec.negation.substr(2) == item.key) {
        refuse(fmt::format("'{}' is no key; write {} = false", item.key, spec.name.substr(2)), "");
      }
    }
    const auto at = find("--" + item.key);
    if (!at || !detail::is_configurable(specs[*at])) {
      if (at && !specs[*at].hidden) refuse(fmt::format("'{}' is for the command line only", item.key), "");
      const std::string guess = did_you_mean(nearest_words(item.key, known));
      if (!guess.empty()) refuse(fmt::format("unknown key '{}'; {}", item.key, guess), "");
      refuse(fmt::format("unknown key '{}'", item.key), "the options' names without their dashes");
    }
    const OptionSpec& spec = specs[*at];
    Entry entry;
    entry.source = OptionSource::config;
    entry.where = fmt::format("{} line {}", path, item.line);
    entry.texts = item.texts;
    if (!spec.repeatable && item.is_array) entry.texts = {joined(item.texts, ",")};
    const bool empty = entry.texts.empty() || std::any_of(entry.texts.begin(), entry.texts.end(),
                                                          [](const std::string& text) { return text.empty(); });
    if (empty) refuse(fmt::format("{} needs a value", item.key), spec.accepted);
    if (is_flag(spec) || is_swept_flag(spec)) {
      const auto text = flag_text(spec, entry.text());
      if (!text) {
        refuse(fmt::format("{} = '{}' is not a truth value", item.key, entry.text()),
               is_swept_flag(spec) ? "true, false, \"both\"" : "true, false");
      }
      entry.texts = {*text};
    }
    // What the command line said stays.
    if (result[*at].source < OptionSource::config) result[*at] = std::move(entry);
  }
}

const Preset& OptionTable::Impl::find_preset(std::string_view name, std::size_t option, const Entry& from) const {
  std::vector<std::string_view> names;
  for (const Preset& known : presets) {
    if (known.name == name) return known;
    names.push_back(known.name);
  }
  const std::string guess = did_you_mean(nearest_words(name, names));
  std::string problem = guess.empty() ? "unknown preset" : fmt::format("unknown preset ({})", guess);
  if (!from.where.empty()) problem += fmt::format(" (from {})", from.where);
  throw UsageError(specs[option].name, name, problem,
                   names.empty() ? "this program has no presets" : joined(names, ", "));
}

void OptionTable::Impl::apply_preset(const Preset& values, std::vector<Entry>& result) const {
  for (const auto& [name, text] : values.values) {
    const std::size_t at = index(name);
    if (result[at].source > OptionSource::preset) continue;
    Entry entry;
    entry.source = OptionSource::preset;
    entry.where = "preset " + values.name;
    entry.texts = {text};
    if (is_flag(specs[at]) || is_swept_flag(specs[at])) {
      const auto canonical = flag_text(specs[at], text);
      WM_CHECK(canonical.has_value(), fmt::format("preset {}: {} is no truth value of {}", values.name, text, name));
      entry.texts = {*canonical};
    }
    result[at] = std::move(entry);
  }
}

void OptionTable::Impl::resolve_exclusions(std::vector<Entry>& result) const {
  const auto describe = [&](std::size_t at) {
    return is_flag(specs[at]) ? specs[at].name : fmt::format("{} {}", specs[at].name, result[at].text());
  };
  for (std::size_t at = 0; at < specs.size(); ++at) {
    const auto& [decider, text] = specs[at].excludes_while;
    if (!decider.empty() && result[index(decider)].text() != text) continue;
    for (const std::string& name : specs[at].excludes) {
      const std::size_t other = index(name);
      const OptionSource mine = result[at].source;
      const OptionSource theirs = result[other].source;
      if (mine == OptionSource::fallback || theirs == OptionSource::fallback) continue;
      if (mine == theirs) {
        WM_CHECK(mine != OptionSource::preset, fmt::format("a preset sets both {} and {}", specs[at].name, name));
        const std::string where = result[at].where.empty() ? "" : fmt::format(" (from {})", result[at].where);
        throw UsageError(fmt::format("{} and {}: contradict each other{}; accepted: one of them", describe(at),
                                     describe(other), where));
      }
      const std::size_t weaker = mine < theirs ? at : other;
      result[weaker] = fallback_of(specs[weaker]);
    }
  }
}

bool OptionTable::Impl::in_exclusion(std::size_t at) const {
  return !specs[at].excludes.empty() || std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& other) {
    return std::find(other.excludes.begin(), other.excludes.end(), specs[at].name) != other.excludes.end();
  });
}

std::vector<Entry> OptionTable::Impl::baseline(const std::string& name) const {
  std::vector<Entry> result;
  for (const OptionSpec& spec : specs) result.push_back(fallback_of(spec));
  for (const Preset& known : presets) {
    if (known.name == name) apply_preset(known, result);
  }
  return result;
}

void OptionTable::parse(int argc, const char* const* argv) {
  Impl& impl = *impl_;
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) arguments.emplace_back(argv[i]);
  const detail::CommandLine line = impl.split(arguments);

  const auto written = [&](std::string_view name) {
    const auto at = impl.find(name);
    return at && !line.occurrences[*at].empty();
  };
  std::vector<Entry> result;
  for (const OptionSpec& spec : impl.specs) result.push_back(fallback_of(spec));
  if (written("--help") || written("--version")) {
    impl.entries = std::move(result);
    impl.preset.clear();
    impl.action = written("--help") ? Action::help : Action::version;
    return;
  }
  if (!line.unknown.empty()) impl.refuse_unknown(line.unknown.front());

  static const std::vector<std::string> kNone;
  std::size_t negations = impl.specs.size();
  for (std::size_t at = 0; at < impl.specs.size(); ++at) {
    const auto& off = impl.specs[at].negation.empty() ? kNone : line.occurrences[negations++];
    if (auto entry = impl.from_command_line(at, line.occurrences[at], off)) result[at] = std::move(*entry);
  }
  if (const auto config = impl.find("--config"); config && !result[*config].texts.empty()) {
    impl.apply_config(result[*config].text(), result);
  }
  std::string preset = impl.default_preset;
  if (const auto at = impl.find("--preset"); at && !result[*at].texts.empty()) {
    preset = impl.find_preset(result[*at].text(), *at, result[*at]).name;
  }
  for (const Preset& known : impl.presets) {
    if (known.name == preset) impl.apply_preset(known, result);
  }
  impl.resolve_exclusions(result);

  impl.entries = std::move(result);
  impl.preset = std::move(preset);
  const auto is_set = [&](std::string_view name) { return impl.find(name) && impl.entry(name).text() == "true"; };
  impl.action = is_set("--help-markdown")  ? Action::help_markdown
                : is_set("--list")         ? Action::list
                : is_set("--doctor")       ? Action::doctor
                : is_set("--print-config") ? Action::print_config
                                           : Action::run;
}

}  // namespace warpmeter::harness
