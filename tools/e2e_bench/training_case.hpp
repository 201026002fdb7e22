#pragma once

#include "tools/e2e_bench/configuration.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::e2e_bench {

/// Trains a model on a Markov source and reports how its loss came down to the source's entropy.
class TrainingCase : public harness::Case {
 public:
  TrainingCase(Configuration configuration, Device device)
      : configuration_(std::move(configuration)), device_(device) {}

  [[nodiscard]] reports::Object configuration() const override { return describe(configuration_); }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override {
    return e2e_bench::option_values(configuration_, device_);
  }
  [[nodiscard]] std::optional<std::string> unsupported() const override {
    return e2e_bench::unsupported(configuration_, device_);
  }
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  Configuration configuration_;
  Device device_;
};

/// The share of the highest learning rate at `step` of `steps`: up in a line over the first twentieth, then a cosine
/// down to a tenth.
[[nodiscard]] double learning_rate_share(std::int64_t step, std::int64_t steps);

}  // namespace warpmeter::e2e_bench
