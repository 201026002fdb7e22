#pragma once

#include "tools/harness/tool.hpp"

namespace warpmeter::attn_bench {

/// attn_bench: attention implementations in time, memory and correctness over a sweep of shapes.
class AttentionTool : public harness::Tool {
 public:
  [[nodiscard]] std::string name() const override { return "attn_bench"; }
  [[nodiscard]] std::string summary() const override;
  void add_options(harness::OptionTable& table) const override;
  [[nodiscard]] std::string default_preset(Device device) const override;
  [[nodiscard]] std::string list(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::unique_ptr<harness::Case>> cases(const harness::OptionTable& table,
                                                                  const harness::Settings& settings) const override;
  [[nodiscard]] reports::TableLayout layout() const override;
  [[nodiscard]] std::vector<std::string> row_keys() const override;
  [[nodiscard]] std::string preset_for(const harness::OptionTable& table, Device device) const override;
  [[nodiscard]] reports::TableLayout layout_for(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::string> row_keys_for(const harness::OptionTable& table) const override;
  [[nodiscard]] std::vector<std::string> closing(const harness::OptionTable& table,
                                                 const reports::Document& document) const override;
};

}  // namespace warpmeter::attn_bench
