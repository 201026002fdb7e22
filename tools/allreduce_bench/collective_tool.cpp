#include "tools/allreduce_bench/collective_tool.hpp"

#include <algorithm>
#include <array>

#include "tools/allreduce_bench/collective_case.hpp"
#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/launch/options.hpp"

namespace warpmeter::allreduce_bench {
namespace {

constexpr std::array<std::string_view, 4> kDTypes = {"fp32", "bf16", "fp16", "int32"};

}  // namespace

std::string CollectiveTool::summary() const {
  return "Time, bandwidth and correctness of all-reduce and its kin over backends, numbers of ranks and sizes.";
}

void CollectiveTool::add_options(harness::OptionTable& table) const {
  allreduce_bench::add_options(table);
}

std::span<const std::string_view> CollectiveTool::dtypes() const {
  return kDTypes;
}

void CollectiveTool::adjust(const harness::OptionTable& table, harness::Settings& settings) const {
  // auto: where the backends that were asked for work; GPUs only where there are two to talk.
  if (settings.device_was_auto && settings.device.is_cuda()) {
    bool on_gpus = cuda_device_count() > 1;
    if (!table.text("--backend").empty()) {
      const auto chosen = harness::launch::chosen_backends(table, settings.device);
      on_gpus = std::any_of(chosen.begin(), chosen.end(),
                            [](const auto* backend) { return backend->device_kind() == DeviceKind::cuda; });
    }
    if (!on_gpus) settings.device = Device::cpu();
  }
  // What a collective sends has just been computed; and so it is measured everywhere else.
  if (!table.given("--cache")) settings.cache = harness::CacheState::hot;
}

std::string CollectiveTool::default_preset(Device /*device*/) const {
  return "";
}

std::string CollectiveTool::list(const harness::OptionTable& /*table*/) const {
  std::string text;
  for (const collectives::Backend* backend : collectives::backends()) {
    std::string name(backend->name());
    name.resize(7, ' ');
    collectives::GroupShape pair;
    pair.world_size = pair.most_on_a_host = 2;
    const auto reason = backend->unavailable(pair);
    text += "  " + name + (backend->device_kind() == DeviceKind::cpu ? "CPU   " : "GPUs  ") +
            std::string(backend->description()) + "\n";
    if (reason) text += "         not here for two ranks: " + *reason + "\n";
  }
  return text;
}

std::vector<std::unique_ptr<harness::Case>> CollectiveTool::cases(const harness::OptionTable& table,
                                                                  const harness::Settings& settings) const {
  const auto groups = std::make_shared<harness::launch::Groups>(argv_, harness::launch::timeout_s(table), joined_);
  (void)harness::launch::backend_options(table);  // refuses what the ranks would
  std::vector<std::unique_ptr<harness::Case>> cases;
  std::size_t index = 0;
  for (const Configuration& configuration : expand(table, settings, joined_ ? joined_->size() : 0)) {
    cases.push_back(std::make_unique<CollectiveCase>(configuration, index++, groups));
  }
  return cases;
}

reports::TableLayout CollectiveTool::layout() const {
  reports::TableLayout layout;
  layout.columns = {"target", "world_size", "tensor_size", "median_ms", "mean_ms", "algo_GiBps"};
  layout.wide_columns = {
      "collective", "op",         "dtype", "in_place",    "buffers", "min_ms",       "p95_ms",
      "p99_ms",     "stdev_ms",   "noise", "n",           "stop",    "skew_mean_ms", "in_a_row_mean_ms",
      "algbw_gbps", "busbw_gbps", "bound", "bound_share", "wrong",   "library",      "status"};
  return layout;
}

std::vector<std::string> CollectiveTool::row_keys() const {
  return allreduce_bench::row_keys();
}

}  // namespace warpmeter::allreduce_bench
