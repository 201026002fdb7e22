#include "tools/harness/detail/help.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "tools/harness/detail/joined.hpp"

namespace warpmeter::harness::detail {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kTextColumn = 26;  ///< where explanations start

/// `text` broken at spaces into lines of at most kColumns that start at column `indent`; the first line goes on where
/// `out` stands, at column `column`.
void append_wrapped(std::string& out, std::string_view text, std::size_t indent, std::size_t column) {
  bool line_has_words = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const std::size_t needed = word.size() + (line_has_words ? 1 : 0);
    if (line_has_words && column + needed > kColumns) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
      line_has_words = false;
    }
    if (line_has_words) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    line_has_words = true;
  }
  out += '\n';
}

/// A command line, broken before options as a shell takes it.
void append_example(std::string& out, std::string_view line) {
  constexpr std::string_view kBreak = " \\\n      ";
  out += "  ";
  std::size_t column = 2;
  while (!line.empty()) {
    const std::string_view piece = line.substr(0, line.find(" -", 1));
    line.remove_prefix(piece.size());
    if (column > 2 && column + piece.size() + 2 > kColumns) {
      out += kBreak;
      out += piece.substr(1);
      column = 6 + piece.size() - 1;
    } else {
      out += piece;
      column += piece.size();
    }
  }
  out += '\n';
}

std::string shown_default(const OptionSpec& spec) {
  if (!spec.default_note.empty()) return spec.default_note;
  if (spec.action) return "";
  if (spec.negation.empty()) return spec.metavar.empty() ? "" : spec.default_text;  // a plain flag is off by default
  if (spec.default_text == "true") return spec.name;
  if (spec.default_text == "false") return spec.negation;
  return fmt::format("{}=both", spec.name);
}

std::string shown_accepted(const OptionSpec& spec) {
  if (!spec.accepted.empty() || spec.negation.empty() || spec.metavar.empty()) return spec.accepted;
  return fmt::format("{0}, {1} or {0}=both", spec.name, spec.negation);
}

/// A preset as the command line that it stands for.
std::string preset_values(const Preset& preset, const std::vector<OptionSpec>& specs) {
  std::vector<std::string> words;
  for (const auto& [name, text] : preset.values) {
    const auto is_it = [&option = name](const OptionSpec& spec) { return spec.name == option; };
    const auto spec = std::find_if(specs.begin(), specs.end(), is_it);
    const bool flag = spec != specs.end() && (spec->metavar.empty() || !spec->negation.empty());
    if (!flag) {
      words.push_back(fmt::format("{} {}", name, text));
    } else if (text == "true") {
      words.push_back(name);
    } else {
      words.push_back(text == "false" && !spec->negation.empty() ? spec->negation : fmt::format("{}={}", name, text));
    }
  }
  return joined(words, " ");
}

/// A cell of a Markdown table: a bar would end it.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", cell(text));
}

}  // namespace

std::vector<std::string> option_groups(const std::vector<OptionSpec>& specs) {
  std::vector<std::string> groups;
  for (const OptionSpec& spec : specs) {
    if (!spec.hidden && std::find(groups.begin(), groups.end(), spec.group) == groups.end())
      groups.push_back(spec.group);
  }
  return groups;
}

std::string usage_of(const OptionSpec& spec) {
  std::string text = spec.short_name.empty() ? spec.name : fmt::format("{}, {}", spec.short_name, spec.name);
  if (!spec.negation.empty()) {
    if (!spec.metavar.empty()) text += fmt::format("[={}]", spec.metavar);
    return fmt::format("{}, {}", text, spec.negation);
  }
  return spec.metavar.empty() ? text : fmt::format("{} {}", text, spec.metavar);
}

std::string render_help(const HelpSource& source) {
  std::string out = fmt::format("{}: ", source.program);
  append_wrapped(out, source.summary, 2, out.size());
  out +=
      fmt::format("\nUsage: {} {}[options]\n", source.program, source.operands + (source.operands.empty() ? "" : " "));
  for (const std::string& group : option_groups(source.specs)) {
    out += fmt::format("\n{}:\n", group);
    for (const OptionSpec& spec : source.specs) {
      if (spec.hidden || spec.group != group) continue;
      std::string line = "  " + usage_of(spec);
      if (line.size() + 2 > kTextColumn) {
        out += line + "\n";
        line.clear();
      }
      line.resize(kTextColumn, ' ');
      out += line;
      append_wrapped(out, spec.help, kTextColumn, kTextColumn);
      const std::string value = shown_default(spec);
      const std::string accepted = shown_accepted(spec);
      std::string facts;
      if (!value.empty()) facts = "Default: " + value;
      if (!accepted.empty()) facts += (facts.empty() ? "Accepted: " : "; accepted: ") + accepted;
      if (!facts.empty()) {
        out.append(kTextColumn, ' ');
        append_wrapped(out, facts, kTextColumn, kTextColumn);
      }
    }
  }
  if (!source.presets.empty()) {
    out += "\nPresets (options given beside one win):\n";
    for (const Preset& preset : source.presets) {
      std::string line = "  " + preset.name;
      if (line.size() + 2 > kTextColumn) {
        out += line + "\n";
        line.clear();
      }
      line.resize(kTextColumn, ' ');
      out += line;
      const bool is_default = preset.name == source.default_preset;
      append_wrapped(out, preset.description + (is_default ? " (the default here)" : ""), kTextColumn, kTextColumn);
      out.append(kTextColumn, ' ');
      append_wrapped(out, preset_values(preset, source.specs), kTextColumn, kTextColumn);
    }
  }
  if (!source.examples.empty()) {
    out += "\nExamples:\n";
    for (const std::string& line : source.examples) append_example(out, line);
  }
  return out;
}

std::string render_markdown(const HelpSource& source) {
  std::string out;
  for (const std::string& group : option_groups(source.specs)) {
    out += fmt::format("{}### {}\n\n", out.empty() ? "" : "\n", group);
    out += "| Option | Default | Accepted | What it does | Example |\n|---|---|---|---|---|\n";
    for (const OptionSpec& spec : source.specs) {
      if (spec.hidden || spec.group != group) continue;
      const std::string value = spec.default_note.empty() ? code(shown_default(spec)) : cell(spec.default_note);
      out += fmt::format("| {} | {} | {} | {} | {} |\n", code(usage_of(spec)), value, cell(shown_accepted(spec)),
                         cell(spec.help), code(spec.example));
    }
  }
  if (!source.presets.empty()) {
    out += fmt::format("{}### Presets\n\n| Preset | What it measures | Stands for |\n|---|---|---|\n",
                       out.empty() ? "" : "\n");
    for (const Preset& preset : source.presets) {
      out += fmt::format("| {} | {} | {} |\n", code(preset.name), cell(preset.description),
                         code(preset_values(preset, source.specs)));
    }
  }
  return out;
}

}  // namespace warpmeter::harness::detail
