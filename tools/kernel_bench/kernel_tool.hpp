#pragma once

#include "tools/harness/tool.hpp"

namespace warpmeter::kernel_bench {

/// kernel_bench: the primer's kernels in time, share of the machine's measured rates, and correctness.
class KernelTool : public harness::Tool {
 public:
  [[nodiscard]] std::string name() const override { return "kernel_bench"; }
  [[nodiscard]] std::string summary() const override;
  void add_options(harness::OptionTable& table) const override;
  [[nodiscard]] std::span<const std::string_view> dtypes() const override;
  [[nodiscard]] std::string default_preset(Device device) const override;
  [[nodiscard]] std::string list(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::unique_ptr<harness::Case>> cases(const harness::OptionTable& table,
                                                                  const harness::Settings& settings) const override;
  [[nodiscard]] reports::TableLayout layout() const override;
  [[nodiscard]] std::vector<std::string> row_keys() const override;
};

}  // namespace warpmeter::kernel_bench
