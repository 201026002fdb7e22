#pragma once

#include <utility>
#include <vector>

#include "tools/e2e_bench/data_parallel_configuration.hpp"
#include "tools/harness/launch/worker.hpp"

namespace warpmeter::e2e_bench {

/// A rank's part in rows of data-parallel training.
class DataParallelWorker : public harness::launch::Worker {
 public:
  explicit DataParallelWorker(std::vector<DataParallelConfiguration> configurations)
      : configurations_(std::move(configurations)) {}

  [[nodiscard]] harness::launch::Outcome measure(const harness::launch::RankAtWork& rank, std::size_t index) override;

 private:
  std::vector<DataParallelConfiguration> configurations_;
};

}  // namespace warpmeter::e2e_bench
