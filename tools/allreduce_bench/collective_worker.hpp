#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/launch/worker.hpp"

namespace warpmeter::allreduce_bench {

/// A rank's part in the rows and in the demo.
class CollectiveWorker : public harness::launch::Worker {
 public:
  explicit CollectiveWorker(std::vector<Configuration> configurations) : configurations_(std::move(configurations)) {}

  [[nodiscard]] harness::launch::Outcome measure(const harness::launch::RankAtWork& rank, std::size_t index) override;
  /// The demo: `order` is its seed.
  [[nodiscard]] std::string perform(const harness::launch::RankAtWork& rank, const std::string& order) override;
  [[nodiscard]] bool measures_links() const override { return true; }

 private:
  std::vector<Configuration> configurations_;
};

}  // namespace warpmeter::allreduce_bench
