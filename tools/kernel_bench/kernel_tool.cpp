#include "tools/kernel_bench/kernel_tool.hpp"

#include <array>

#include "kernels/primer/registry.hpp"
#include "tools/kernel_bench/configuration.hpp"
#include "tools/kernel_bench/kernel_case.hpp"

namespace warpmeter::kernel_bench {

std::string KernelTool::summary() const {
  return "Small kernels, from vector add to int4 matmul: time, share of the measured bandwidth or matmul rate, "
         "correctness.";
}

void KernelTool::add_options(harness::OptionTable& table) const {
  kernel_bench::add_options(table);
}

std::span<const std::string_view> KernelTool::dtypes() const {
  static constexpr std::array<std::string_view, 3> kDtypes = {"fp32", "bf16", "fp16"};
  return kDtypes;
}

std::string KernelTool::default_preset(Device device) const {
  return device.is_cuda() ? "widths" : "quick";
}

std::string KernelTool::list(const harness::OptionTable& /*table*/) const {
  std::string text;
  for (const primer::Kernel& kernel : primer::kernels()) {
    std::string sizes;
    for (const primer::Size size : kernel.sizes) sizes += (sizes.empty() ? "" : ", ") + option_of(size).substr(2);
    text += std::string(kernel.name) + "\n  " + std::string(kernel.formula) + "\n  " + std::string(kernel.layout) +
            "\n  sizes: " + sizes + "\n  fp32, bf16, fp16 on the CPU" +
            (kernel.cuda != nullptr ? " and on CUDA devices" : "; no CUDA in this build") + "\n";
  }
  return text;
}

std::vector<std::unique_ptr<harness::Case>> KernelTool::cases(const harness::OptionTable& table,
                                                              const harness::Settings& settings) const {
  std::vector<std::unique_ptr<harness::Case>> cases;
  for (const Configuration& configuration : expand(table, settings)) {
    cases.push_back(std::make_unique<KernelCase>(configuration, settings.device));
  }
  return cases;
}

reports::TableLayout KernelTool::layout() const {
  reports::TableLayout layout;
  layout.group_by = {"kernel"};
  layout.columns = {"dtype", "rows", "cols"};
  layout.wide_columns = {"batch", "inner", "kernel_size", "group_size"};
  for (const std::string pass : {"fwd", "bwd"}) {
    for (const char* figure : {"_ms", "_gbps", "_tflops", "_bound", "_bound_share", "_plain_share"})
      layout.columns.push_back(pass + figure);
    for (const char* figure : {"_mean_ms", "_min_ms", "_p95_ms", "_p99_ms", "_stdev_ms", "_noise", "_n", "_stop",
                               "_plain_ms", "_peak_mem_mib"}) {
      layout.wide_columns.push_back(pass + figure);
    }
  }
  layout.columns.insert(layout.columns.end(), {"max_rel_error", "status"});
  layout.wide_columns.push_back("check");
  return layout;
}

std::vector<std::string> KernelTool::row_keys() const {
  return kernel_row_keys();
}

}  // namespace warpmeter::kernel_bench
