#include "tools/harness/option_table.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/detail/command_line.hpp"
#include "tools/harness/detail/config_file.hpp"
#include "tools/harness/detail/help.hpp"
#include "tools/harness/detail/joined.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::harness {
namespace {

using Action = OptionTable::Action;
using detail::joined;

bool is_flag(const OptionSpec& spec) {
  return spec.metavar.empty();
}
bool is_swept_flag(const OptionSpec& spec) {
  return !spec.metavar.empty() && !spec.negation.empty();
}

/// The text of a flag in its one spelling; nullopt when `text` is none.
std::optional<std::string> flag_text(const OptionSpec& spec, std::string_view text) {
  if (text == "true" || text == "false") return std::string(text);
  if (!is_swept_flag(spec)) return std::nullopt;
  if (text == "both" || text == "true,false") return "true,false";
  if (text == "false,true") return "false,true";
  return std::nullopt;
}

std::string flag_accepted(const OptionSpec& spec) {
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

Entry fallback_of(const OptionSpec& spec) {
  Entry entry;
  if (!spec.default_text.empty()) entry.texts.push_back(spec.default_text);
  return entry;
}

}  // namespace

struct OptionTable::Impl {
  std::string program;
  std::string summary;
  std::vector<OptionSpec> specs;
  std::vector<Preset> presets;
  std::string default_preset;
  std::vector<std::string> examples;

  std::vector<Entry> entries;  ///< beside specs
  std::string preset;          ///< in force, or ""
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
  [[nodiscard]] const Entry& entry(std::string_view name) const { return entries[index(name)]; }

  [[nodiscard]] UsageError error(std::size_t at, std::string_view value, std::string_view problem,
                                 std::string_view accepted) const {
    const Entry& entry = entries[at];
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
  [[nodiscard]] std::optional<Entry> from_command_line(std::size_t at, const std::vector<std::string>& on,
                                                       const std::vector<std::string>& off) const;
  void apply_config(const std::string& path, std::vector<Entry>& result) const;
  [[nodiscard]] const Preset& find_preset(std::string_view name, std::size_t option, const Entry& entry) const;
  void apply_preset(const Preset& values, std::vector<Entry>& result) const;
  void resolve_exclusions(std::vector<Entry>& result) const;
  /// What stands when nothing but `preset` is named.
  [[nodiscard]] std::vector<Entry> baseline(const std::string& name) const;
};

/// Two switches an option: its name, and its negation where it has one, else a name that nobody can write.
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
        throw UsageError(spec.name, joined(on, ","), "given twice with different values", flag_accepted(spec));
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
  const auto settable = [](const OptionSpec& spec) { return !spec.action && !spec.hidden && spec.name != "--config"; };
  for (const OptionSpec& spec : specs) {
    if (settable(spec)) known.push_back(std::string_view(spec.name).substr(2));
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
    if (!at || !settable(specs[*at])) {
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

std::vector<Entry> OptionTable::Impl::baseline(const std::string& name) const {
  std::vector<Entry> result;
  for (const OptionSpec& spec : specs) result.push_back(fallback_of(spec));
  for (const Preset& known : presets) {
    if (known.name == name) apply_preset(known, result);
  }
  return result;
}

OptionTable::OptionTable(std::string program, std::string summary) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->summary = std::move(summary);
}
OptionTable::~OptionTable() = default;
OptionTable::OptionTable(OptionTable&&) noexcept = default;
OptionTable& OptionTable::operator=(OptionTable&&) noexcept = default;

void OptionTable::add(OptionSpec spec) {
  WM_CHECK(spec.name.starts_with("--") && spec.name.size() > 2, "an option's name starts with --: " + spec.name);
  WM_CHECK(spec.negation.empty() || spec.negation.starts_with("--"), "a negation starts with --: " + spec.negation);
  WM_CHECK(spec.short_name.empty() || (spec.short_name.size() == 2 && spec.short_name[0] == '-'),
           "a short name is a dash and a letter: " + spec.short_name);
  WM_CHECK(!impl_->find(spec.name), fmt::format("{} is in the table already", spec.name));
  if (is_flag(spec) || is_swept_flag(spec)) {
    if (spec.default_text.empty()) spec.default_text = "false";
    const auto text = flag_text(spec, spec.default_text);
    WM_CHECK(text.has_value(), fmt::format("{} is no truth value of {}", spec.default_text, spec.name));
    spec.default_text = *text;
  }
  impl_->entries.push_back(fallback_of(spec));
  impl_->specs.push_back(std::move(spec));
}

void OptionTable::add_presets(std::vector<Preset> presets) {
  for (Preset& preset : presets) impl_->presets.push_back(std::move(preset));
}

void OptionTable::set_default_preset(std::string name) {
  const auto& known = impl_->presets;
  WM_CHECK(name.empty() || std::any_of(known.begin(), known.end(), [&](const Preset& p) { return p.name == name; }),
           "there is no preset " + name);
  impl_->default_preset = std::move(name);
}

void OptionTable::add_examples(std::vector<std::string> lines) {
  for (std::string& line : lines) impl_->examples.push_back(std::move(line));
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
                : is_set("--print-config") ? Action::print_config
                                           : Action::run;
}

OptionTable::Action OptionTable::action() const {
  return impl_->action;
}
const std::string& OptionTable::program() const {
  return impl_->program;
}
const std::vector<OptionSpec>& OptionTable::specs() const {
  return impl_->specs;
}
const std::vector<Preset>& OptionTable::presets() const {
  return impl_->presets;
}
const std::string& OptionTable::preset() const {
  return impl_->preset;
}
OptionSource OptionTable::source(std::string_view name) const {
  return impl_->entry(name).source;
}
bool OptionTable::given(std::string_view name) const {
  return impl_->entry(name).given();
}
bool OptionTable::has(std::string_view name) const {
  return !impl_->entry(name).texts.empty();
}

std::string OptionTable::help_text() const {
  return detail::render_help(
      {impl_->program, impl_->summary, impl_->specs, impl_->presets, impl_->default_preset, impl_->examples});
}
std::string OptionTable::markdown_text() const {
  return detail::render_markdown(
      {impl_->program, impl_->summary, impl_->specs, impl_->presets, impl_->default_preset, impl_->examples});
}

std::string OptionTable::config_text() const {
  const Impl& impl = *impl_;
  std::string text =
      fmt::format("# Options of {0}, as in force: `{0} --config FILE` reads this file back.\n", impl.program);
  text += "# Lines that start with # are what stands anyway.\n";
  std::string_view group;
  for (std::size_t at = 0; at < impl.specs.size(); ++at) {
    const OptionSpec& spec = impl.specs[at];
    if (spec.hidden || spec.action || spec.name == "--config") continue;
    if (spec.group != group) {
      group = spec.group;
      text += fmt::format("\n# {}\n", group);
    }
    const std::string key = spec.name.substr(2);
    Entry entry = impl.entries[at];
    // The default preset is written out, since another device may have another one.
    if (spec.name == "--preset" && !impl.preset.empty()) {
      entry.texts = {impl.preset};
      entry.source = OptionSource::config;
    }
    if (entry.texts.empty()) {
      text += fmt::format("# {} is not set\n", key);
      continue;
    }
    std::string value;
    if (spec.repeatable) {
      for (const std::string& item : entry.texts) value += (value.empty() ? "[" : ", ") + detail::toml_string(item);
      value += ']';
    } else if (entry.text() == "true" || entry.text() == "false") {
      value = is_flag(spec) || is_swept_flag(spec) ? entry.text() : detail::toml_string(entry.text());
    } else {
      value = detail::toml_value(entry.text());
    }
    if (entry.given()) {
      text += fmt::format("{} = {}\n", key, value);
    } else {
      text += fmt::format("# {} = {}  # {}\n", key, value, entry.where.empty() ? "default" : entry.where);
    }
  }
  return text;
}

std::string OptionTable::text(std::string_view name) const {
  return impl_->entry(name).text();
}
std::vector<std::string> OptionTable::texts(std::string_view name) const {
  return impl_->entry(name).texts;
}

bool OptionTable::flag(std::string_view name) const {
  const std::string text = impl_->entry(name).text();
  WM_CHECK(text == "true" || text == "false", fmt::format("{} is no flag, or swept: {}", name, text));
  return text == "true";
}

std::vector<bool> OptionTable::flags(std::string_view name) const {
  const std::string text = impl_->entry(name).text();
  if (text == "true,false") return {true, false};
  if (text == "false,true") return {false, true};
  return {flag(name)};
}

std::int64_t OptionTable::integer(std::string_view name, std::int64_t low, std::int64_t high) const {
  return impl_->read(name, [&](const std::string& text) { return parse_integer(text, low, high); });
}

std::vector<std::int64_t> OptionTable::integers(std::string_view name, std::int64_t low, std::int64_t high) const {
  return impl_->read(name, [&](const std::string& text) { return parse_integer_list(text, low, high); });
}

std::uint64_t OptionTable::size(std::string_view name) const {
  return impl_->read(name, [](const std::string& text) { return parse_size(text); });
}

std::vector<std::uint64_t> OptionTable::sizes(std::string_view name) const {
  return impl_->read(name, [](const std::string& text) { return parse_size_list(text); });
}

double OptionTable::number(std::string_view name, double low, double high) const {
  return impl_->read(name, [&](const std::string& text) { return parse_number(text, low, high); });
}

double OptionTable::fraction(std::string_view name) const {
  return impl_->read(name, [](const std::string& text) { return parse_fraction(text); });
}

std::string OptionTable::word(std::string_view name, std::span<const std::string_view> accepted) const {
  return impl_->read(
      name, [&](const std::string& text) { return parse_word(text, accepted); }, joined(accepted, ", "));
}

std::vector<std::string> OptionTable::words(std::string_view name, std::span<const std::string_view> accepted,
                                            bool allow_all) const {
  return impl_->read(
      name, [&](const std::string& text) { return parse_words(text, accepted, allow_all); },
      fmt::format("{}{}, one or several with commas between", joined(accepted, ", "), allow_all ? ", all" : ""));
}

UsageError OptionTable::error(std::string_view name, std::string_view problem) const {
  return error(name, impl_->entry(name).text(), problem);
}

UsageError OptionTable::error(std::string_view name, std::string_view value, std::string_view problem) const {
  const std::size_t at = impl_->index(name);
  return impl_->error(at, value, problem, impl_->specs[at].accepted);
}

std::vector<std::string> OptionTable::rerun_arguments(
    const std::vector<std::pair<std::string, std::string>>& row_values) const {
  const Impl& impl = *impl_;
  std::vector<bool> of_row(impl.specs.size(), false);
  for (const auto& [name, text] : row_values) {
    const std::size_t at = impl.index(name);
    WM_CHECK(impl.specs[at].row_option, name + " is not part of a row's configuration");
    of_row[at] = true;
  }
  const auto matters = [&](std::size_t at) {
    const OptionSpec& spec = impl.specs[at];
    return !of_row[at] && !spec.output_option && !spec.action && !spec.hidden && spec.name != "--preset" &&
           spec.name != "--config";
  };
  std::vector<std::string> arguments;
  const auto append = [&](const OptionSpec& spec, const std::string& text) {
    if (text.empty()) return;
    if (is_flag(spec) || is_swept_flag(spec)) {
      if (text == "true") {
        arguments.push_back(spec.name);
      } else if (text == "false" && !spec.negation.empty()) {
        arguments.push_back(spec.negation);
      } else {
        arguments.push_back(fmt::format("{}={}", spec.name, text));
      }
    } else if (text.starts_with('-')) {
      arguments.push_back(fmt::format("{}={}", spec.name, text));  // not to be taken for an option
    } else {
      arguments.push_back(spec.name);
      arguments.push_back(text);
    }
  };

  // The rerun stands on the default preset unless the one in force says something else that the row itself does not.
  std::vector<Entry> base = impl.baseline(impl.default_preset);
  for (std::size_t at = 0; at < impl.specs.size(); ++at) {
    const Entry& entry = impl.entries[at];
    if (!matters(at) || entry.given() || entry.text() == base[at].text()) continue;
    if (impl.preset == impl.default_preset) continue;  // reset by an excluding option, which the rerun has too
    arguments = {"--preset", impl.preset};
    base = impl.baseline(impl.preset);
    break;
  }
  for (std::size_t at = 0; at < impl.specs.size(); ++at) {
    const OptionSpec& spec = impl.specs[at];
    const Entry& entry = impl.entries[at];
    if (!matters(at) || !entry.given()) continue;
    const bool excludes = !spec.excludes.empty();
    if (entry.text() == base[at].text() && !excludes) continue;
    for (const std::string& text : spec.repeatable ? entry.texts : std::vector<std::string>{entry.text()}) {
      append(spec, text);
    }
  }
  for (const auto& [name, text] : row_values) {
    const OptionSpec& spec = impl.specs[impl.index(name)];
    append(spec, text);
  }
  return arguments;
}

std::string shell_line(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./%@";
  std::string line;
  for (const std::string& argument : arguments) {
    if (!line.empty()) line += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) {
      if (c == '\'') {
        line += "'\\''";
      } else {
        line += c;
      }
    }
    line += '\'';
  }
  return line;
}

}  // namespace warpmeter::harness
