#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/option_table.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::harness {

/// A program of the suite: options -> cases -> sweep -> report. main() is `return run_tool(MyTool(), argc, argv);`.
class Tool {
 public:
  virtual ~Tool() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< first line of --help
  /// The tool's own options, presets and examples; the shared ones are there already.
  virtual void add_options(OptionTable& table) const = 0;
  /// What --dtype takes; nothing: the tool has no such option.
  [[nodiscard]] virtual std::span<const std::string_view> dtypes() const { return kDTypeWords; }
  /// Changes what the shared options leave to the tool: where `auto` measures, say. After they have been read.
  virtual void adjust(const OptionTable& /*table*/, Settings& /*settings*/) const {}
  /// The preset in force when none is named.
  [[nodiscard]] virtual std::string default_preset(Device device) const = 0;
  /// Text of --list.
  [[nodiscard]] virtual std::string list(const OptionTable& table) const = 0;
  /// The configurations, checked: throws UsageError before anything is measured.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Case>> cases(const OptionTable& table,
                                                                 const Settings& settings) const = 0;
  [[nodiscard]] virtual reports::TableLayout layout() const = 0;
  [[nodiscard]] virtual std::vector<std::string> row_keys() const = 0;

  // The same for a tool that makes several kinds of table and whose options say which.
  [[nodiscard]] virtual std::string preset_for(const OptionTable& /*table*/, Device device) const {
    return default_preset(device);
  }
  [[nodiscard]] virtual reports::TableLayout layout_for(const OptionTable& /*table*/) const { return layout(); }
  [[nodiscard]] virtual std::vector<std::string> row_keys_for(const OptionTable& /*table*/) const { return row_keys(); }

  /// Lines for stderr once all rows are there: what they come to together.
  [[nodiscard]] virtual std::vector<std::string> closing(const OptionTable& /*table*/,
                                                         const reports::Document& /*document*/) const {
    return {};
  }
};

/// The options that the arguments stand for, with the preset that is in force on this device. Throws UsageError.
[[nodiscard]] OptionTable parse_command_line(const Tool& tool, int argc, const char* const* argv);

/// Parses, measures, reports. Returns the exit status of design's table; catches everything.
int run_tool(const Tool& tool, int argc, const char* const* argv);

}  // namespace warpmeter::harness
