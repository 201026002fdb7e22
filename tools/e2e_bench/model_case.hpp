#pragma once

#include <optional>

#include "tools/e2e_bench/configuration.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::e2e_bench {

/// Measures one model as the notes do: forward without anything kept, then forward and backward and the whole training
/// step with the optimizer's state resident, the peaks of inference and training apart. The first call of each phase is
/// timed by itself: libraries load and choose there.
class ModelCase : public harness::Case {
 public:
  ModelCase(Configuration configuration, Device device) : configuration_(std::move(configuration)), device_(device) {}

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
  mutable std::optional<harness::Prediction> prediction_;  ///< asked for several times, the same each time
};

/// What a row of that configuration will take, from a run without memory.
[[nodiscard]] harness::Prediction predict(const Configuration& configuration, Device device);

}  // namespace warpmeter::e2e_bench
