#include "tools/harness/option_table.hpp"

#include <algorithm>

#include "tools/harness/detail/config_file.hpp"
#include "tools/harness/detail/help.hpp"
#include "tools/harness/detail/option_table_impl.hpp"

namespace warpmeter::harness {

using detail::Entry;
using detail::fallback_of;
using detail::flag_text;
using detail::is_flag;
using detail::is_swept_flag;
using detail::joined;

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

void OptionTable::set_operands(std::string operands) {
  impl_->operands = std::move(operands);
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
  return detail::render_help({impl_->program, impl_->summary, impl_->operands, impl_->specs, impl_->presets,
                              impl_->default_preset, impl_->examples});
}
std::string OptionTable::markdown_text() const {
  return detail::render_markdown({impl_->program, impl_->summary, impl_->operands, impl_->specs, impl_->presets,
                                  impl_->default_preset, impl_->examples});
}

std::string OptionTable::Impl::config_line(std::size_t at) const {
  const OptionSpec& spec = specs[at];
  const std::string key = spec.name.substr(2);
  Entry entry = entries[at];
  // The default preset is written out, since another device may have another one.
  if (spec.name == "--preset" && !preset.empty()) {
    entry.texts = {preset};
    entry.source = OptionSource::config;
  }
  if (entry.texts.empty()) return fmt::format("# {} is not set\n", key);
  const std::string text = entry.text();
  std::string value;
  if (spec.repeatable) {
    for (const std::string& item : entry.texts) value += (value.empty() ? "[" : ", ") + detail::toml_string(item);
    value += ']';
  } else if ((is_flag(spec) || is_swept_flag(spec)) && (text == "true" || text == "false")) {
    value = text;
  } else {
    value = detail::toml_value(text);
  }
  if (entry.given()) return fmt::format("{} = {}\n", key, value);
  return fmt::format("# {} = {}  # {}\n", key, value, entry.where.empty() ? "default" : entry.where);
}

std::string OptionTable::config_text() const {
  const Impl& impl = *impl_;
  std::string text =
      fmt::format("# Options of {0}, as in force: `{0} --config FILE` reads this file back.\n", impl.program);
  text += "# Lines that start with # are what stands anyway.\n";
  for (const std::string& group : detail::option_groups(impl.specs)) {
    text += fmt::format("\n# {}\n", group);
    for (std::size_t at = 0; at < impl.specs.size(); ++at) {
      const OptionSpec& spec = impl.specs[at];
      if (spec.group == group && detail::is_configurable(spec)) text += impl.config_line(at);
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
  // What says in another way what the row says (--tokens beside --batch) is left to the row.
  for (std::size_t at = 0; at < impl.specs.size(); ++at) {
    for (const std::string& other : impl.specs[at].excludes) {
      const std::size_t partner = impl.index(other);
      if (!impl.specs[at].row_option || !impl.specs[partner].row_option) continue;
      if (of_row[at] || of_row[partner]) of_row[at] = of_row[partner] = true;
    }
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
    // A value that is the default all the same may have put another option out of force.
    if (entry.text() == base[at].text() && !impl.in_exclusion(at)) continue;
    for (const std::string& text : spec.repeatable ? entry.texts : std::vector<std::string>{entry.text()}) {
      append(spec, text);
    }
  }
  for (const auto& [name, text] : row_values) {
    const std::size_t at = impl.index(name);
    const OptionSpec& spec = impl.specs[at];
    // A switch that can only be turned on is off by leaving it out.
    if (is_flag(spec) && spec.negation.empty() && text == base[at].text()) continue;
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
