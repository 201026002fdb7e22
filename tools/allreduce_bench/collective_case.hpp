#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/allreduce_bench/configuration.hpp"
#include "tools/allreduce_bench/group.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::allreduce_bench {

/// Names of a row's configuration fields.
[[nodiscard]] std::vector<std::string> row_keys();

/// The group that the rows of one backend and world size share: formed for the first of them, ended with the last.
class Groups {
 public:
  /// `joined`: ranks that a launcher has started, or null: ranks are started here with the arguments `argv`.
  Groups(std::vector<std::string> argv, double timeout_s, std::shared_ptr<Ranks> joined)
      : argv_(std::move(argv)), timeout_s_(timeout_s), joined_(std::move(joined)) {}

  /// What a group of this backend and size would be.
  [[nodiscard]] collectives::GroupShape shape(int world_size) const;
  /// Throws what kept the group from forming, again for every row.
  [[nodiscard]] Group& get(const collectives::Backend& backend, int world_size, const Group::Warn& warn);
  void close() { group_.reset(); }

 private:
  std::vector<std::string> argv_;
  double timeout_s_;
  std::shared_ptr<Ranks> joined_;
  const collectives::Backend* backend_ = nullptr;
  int world_size_ = 0;
  std::unique_ptr<Group> group_;
  std::map<std::pair<const collectives::Backend*, int>, std::string> failed_;
};

/// One configuration, measured by the ranks of its group.
class CollectiveCase : public harness::Case {
 public:
  CollectiveCase(Configuration configuration, std::size_t index, std::shared_ptr<Groups> groups)
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
  std::shared_ptr<Groups> groups_;
};

}  // namespace warpmeter::allreduce_bench
