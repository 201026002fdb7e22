#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/e2e_bench/data_parallel_configuration.hpp"
#include "tools/harness/launch/groups.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::e2e_bench {

/// What the rows of one sweep know of one another.
struct DataParallelRows {
  harness::launch::Groups groups;
  /// Milliseconds of the bucketed rows that have been timed, by what they share but the bucket's size, and that.
  std::map<std::string, std::map<std::uint64_t, double>> steps_ms{};
};

/// One row of data-parallel training, measured by the ranks of its group.
class DataParallelCase : public harness::Case {
 public:
  DataParallelCase(DataParallelConfiguration configuration, std::size_t index, Device device,
                   std::shared_ptr<DataParallelRows> rows)
      : configuration_(std::move(configuration)), index_(index), device_(device), rows_(std::move(rows)) {}

  [[nodiscard]] reports::Object configuration() const override { return describe(configuration_); }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override {
    return e2e_bench::option_values(configuration_, device_);
  }
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  void add_best_bucket(reports::Object& figures);

  DataParallelConfiguration configuration_;
  std::size_t index_;  ///< the ranks' number of it
  Device device_;
  std::shared_ptr<DataParallelRows> rows_;
  mutable std::optional<harness::Prediction> prediction_;
};

[[nodiscard]] reports::TableLayout data_parallel_layout(bool verified);

}  // namespace warpmeter::e2e_bench
