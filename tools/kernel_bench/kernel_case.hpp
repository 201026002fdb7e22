#pragma once

#include "tools/harness/sweep.hpp"
#include "tools/kernel_bench/configuration.hpp"

namespace warpmeter::kernel_bench {

/// Names of a row's configuration fields. A size that the kernel does not have is null.
[[nodiscard]] std::vector<std::string> kernel_row_keys();

/// Measures one kernel on one problem: a checked call first, then timed ones.
class KernelCase : public harness::Case {
 public:
  KernelCase(const Configuration& configuration, Device device) : configuration_(configuration), device_(device) {}

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  Configuration configuration_;
  Device device_;
};

}  // namespace warpmeter::kernel_bench
