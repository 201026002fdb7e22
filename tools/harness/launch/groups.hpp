#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/harness/launch/group.hpp"

namespace warpmeter::harness::launch {

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

}  // namespace warpmeter::harness::launch
