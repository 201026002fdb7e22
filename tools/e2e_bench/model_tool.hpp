#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/tool.hpp"

namespace warpmeter::e2e_bench {

/// e2e_bench: a whole model from forward to optimizer step.
class ModelTool : public harness::Tool {
 public:
  /// For rows that are measured by ranks: `argv` for those that are started here, `joined` those that a launcher has
  /// started, or null.
  explicit ModelTool(std::vector<std::string> argv = {}, std::shared_ptr<harness::launch::Ranks> joined = nullptr)
      : argv_(std::move(argv)), joined_(std::move(joined)) {}

  [[nodiscard]] std::string name() const override { return "e2e_bench"; }
  [[nodiscard]] std::string summary() const override;
  [[nodiscard]] std::span<const std::string_view> dtypes() const override { return {}; }
  void add_options(harness::OptionTable& table) const override;
  void adjust(const harness::OptionTable& table, harness::Settings& settings) const override;
  [[nodiscard]] std::string default_preset(Device device) const override;
  [[nodiscard]] std::string preset_for(const harness::OptionTable& table, Device device) const override;
  [[nodiscard]] std::string list(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::unique_ptr<harness::Case>> cases(const harness::OptionTable& table,
                                                                  const harness::Settings& settings) const override;
  [[nodiscard]] reports::TableLayout layout() const override;
  [[nodiscard]] std::vector<std::string> row_keys() const override;

 private:
  /// What rows are made of, from the options; row_keys() and layout() follow it.
  enum class Rows : std::uint8_t { phases, training, operations, types, data_parallel };
  mutable Rows rows_ = Rows::phases;
  mutable bool verified_ = false;           ///< data-parallel rows are compared instead of timed
  mutable bool step_stands_alone_ = false;  ///< train_step is the only training phase that is timed
  std::vector<std::string> argv_;
  std::shared_ptr<harness::launch::Ranks> joined_;
};

}  // namespace warpmeter::e2e_bench
