#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/tool.hpp"

namespace warpmeter::allreduce_bench {

/// allreduce_bench: collectives over backends, numbers of ranks and sizes.
class CollectiveTool : public harness::Tool {
 public:
  /// `argv`: for ranks that are started here. `joined`: those that a launcher has started, rank 0 of which this process
  /// leads; or null.
  explicit CollectiveTool(std::vector<std::string> argv, std::shared_ptr<harness::launch::Ranks> joined = nullptr)
      : argv_(std::move(argv)), joined_(std::move(joined)) {}

  [[nodiscard]] std::string name() const override { return "allreduce_bench"; }
  [[nodiscard]] std::string summary() const override;
  void add_options(harness::OptionTable& table) const override;
  [[nodiscard]] std::span<const std::string_view> dtypes() const override;
  void adjust(const harness::OptionTable& table, harness::Settings& settings) const override;
  [[nodiscard]] std::string default_preset(Device device) const override;
  [[nodiscard]] std::string list(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::unique_ptr<harness::Case>> cases(const harness::OptionTable& table,
                                                                  const harness::Settings& settings) const override;
  [[nodiscard]] reports::TableLayout layout() const override;
  [[nodiscard]] std::vector<std::string> row_keys() const override;

 private:
  std::vector<std::string> argv_;
  std::shared_ptr<harness::launch::Ranks> joined_;
};

}  // namespace warpmeter::allreduce_bench
