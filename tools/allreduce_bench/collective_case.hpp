#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/launch/groups.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::allreduce_bench {

/// Names of a row's configuration fields.
[[nodiscard]] std::vector<std::string> row_keys();

/// One configuration, measured by the ranks of its group.
class CollectiveCase : public harness::Case {
 public:
  CollectiveCase(Configuration configuration, std::size_t index, std::shared_ptr<harness::launch::Groups> groups)
      : configuration_(configuration), index_(index), groups_(std::move(groups)) {}

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  void add_bound(harness::Session& session, std::optional<double> link_gbps, reports::Object& figures) const;

  Configuration configuration_;
  std::size_t index_;  ///< the ranks' number of it
  std::shared_ptr<harness::launch::Groups> groups_;
};

}  // namespace warpmeter::allreduce_bench
