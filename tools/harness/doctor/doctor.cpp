#include "tools/harness/doctor/doctor.hpp"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include <fmt/core.h>
#include <unistd.h>

#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/device.hpp"
#include "tools/harness/doctor/datasheet.hpp"
#include "tools/harness/doctor/host_facts.hpp"
#include "tools/harness/doctor/libraries.hpp"
#include "tools/harness/doctor/load_watch.hpp"
#include "tools/harness/doctor/report.hpp"
#include "tools/harness/session.hpp"
#include "tools/harness/sweep_outputs.hpp"

namespace warpmeter::harness::doctor {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::vector<CeilingFact> measure_ceilings(const Settings& settings) {
  Session session(settings);
  Ceilings& ceilings = session.ceilings();
  std::vector<CeilingFact> facts;
  std::vector<ComputePath> measured;
  for (const ComputePath path : {ComputePath::fp32, ComputePath::tf32, ComputePath::half}) {
    const ComputePath own = ceilings::measured_path(path, settings.device);
    if (std::find(measured.begin(), measured.end(), own) != measured.end()) continue;
    measured.push_back(own);
    facts.push_back({fmt::format("matmul_{}_tflops", name(own)), ceilings.matmul_tflops(own), std::nullopt});
  }
  facts.push_back({"copy_gbps", ceilings.copy_gbps(), std::nullopt});
  facts.push_back({"read_gbps", ceilings.read_gbps(), std::nullopt});
  return facts;
}

/// "13.0" is 13000.
std::optional<int> cuda_number(const reports::Object& libraries) {
  const reports::Value* const value = libraries.find("cuda_runtime");
  if (value == nullptr || value->as_string() == nullptr) return std::nullopt;
  int major = 0, minor = 0;
  if (std::sscanf(value->as_string()->c_str(), "%d.%d", &major, &minor) != 2) return std::nullopt;
  return 1000 * major + 10 * minor;
}

/// The settings, and the device that is looked at: another one where the one asked for is not there.
struct Asked {
  Settings settings;
  std::string refused;
};

Asked read_asked(const OptionTable& table) {
  if (table.given("--output")) throw table.error("--output", "--doctor writes to stdout alone; > FILE keeps it");
  const std::string format = table.text("--format");
  if (format != "md" && format != "json") {
    throw UsageError("--format", format, "--doctor does not write it", "md, json");
  }
  Asked asked;
  const std::string device = table.text("--device");
  try {
    (void)parse_device(device);
    asked.settings = read_settings(table);
  } catch (const std::invalid_argument& refusal) {
    // A name that could be a device's is what the doctor is for; any other is a mistake in the command line.
    const bool plausible = device == "cuda" || (device.starts_with("cuda:") && device.size() > 5 &&
                                                device.find_first_not_of("0123456789", 5) == std::string::npos);
    if (!plausible) (void)read_settings(table);  // throws
    asked.refused = refusal.what();
    asked.settings.device = parse_device("auto");
    asked.settings.format = *reports::parse_format(format);
  }
  return asked;
}

}  // namespace

void add_cuda_devices(GpuSystem& system, const Nvml& nvml, CudaFacts& cuda) {
  const bool silent = system.gpus.empty();
  for (int index = 0; index < cuda.devices; ++index) {
    DeviceProperties properties;
    try {
      properties = warpmeter::properties(Device::cuda(index));
    } catch (const std::exception& e) {
      cuda.unavailable = e.what();
      continue;
    }
    if (silent) {
      GpuFacts gpu;
      gpu.nvml_index = index;
      gpu.cuda_index = index;
      gpu.name = properties.name;
      gpu.uuid = properties.uuid;
      gpu.sm = properties.sm;
      gpu.memory_mib = static_cast<double>(properties.memory_bytes) / kMiB;
      system.gpus.push_back(std::move(gpu));
      continue;
    }
    const std::string whole = nvml.whole_gpu(properties.uuid);
    for (GpuFacts& gpu : system.gpus) {
      if (gpu.uuid == whole && !gpu.cuda_index) gpu.cuda_index = index;
    }
  }
}

std::vector<Finding> gpu_warnings(const Nvml& nvml, const std::string& uuid, const std::string& name) {
  const GpuLoad load = nvml.load(uuid);
  GpuFacts gpu;
  gpu.throttle = load.throttle;
  gpu.utilization_percent = load.utilization_percent;
  gpu.other_processes = load.other_processes;
  return judge_gpu(gpu, name);
}

int run_doctor(const std::string& tool, const OptionTable& table, int argc, const char* const* argv) {
  const Asked asked = read_asked(table);
  const Settings& settings = asked.settings;
  const Nvml nvml;
  Facts facts;
  facts.tool = tool;
  facts.argv.assign(argv, argv + argc);
  facts.checked_at = utc_now();
  facts.device = warpmeter::name(settings.device);
  facts.refused_device = asked.refused;
  facts.build = build_info();
  facts.host = read_host_facts();
  facts.gpu_system = nvml.system();  // before this program keeps a GPU busy
  facts.environment = read_environment();
  facts.libraries = read_libraries();
  facts.cuda.built = built_with_cuda();
  facts.cuda.runtime = cuda_number(libraries_object());
  facts.cuda.devices = cuda_device_count();
  facts.cuda.unavailable = cuda_unavailable_reason();
  add_cuda_devices(facts.gpu_system, nvml, facts.cuda);
#if WARPMETER_CUDA
  if (facts.cuda.devices > 1) ask_cuda_for_peers(facts.gpu_system);
#endif
  for (GpuFacts& gpu : facts.gpu_system.gpus) gpu.numa_node = numa_node_of_pci(gpu.pci_bus_id);

  std::string gpu_name;
  try {
    std::string uuid;
    if (settings.device.is_cuda()) {
      const DeviceProperties properties = warpmeter::properties(settings.device);
      gpu_name = properties.name;
      uuid = properties.uuid;
    }
    std::optional<LoadWatch> watch;
    if (settings.device.is_cuda()) watch.emplace(nvml, uuid);
    facts.ceilings = measure_ceilings(settings);
    for (GpuFacts& gpu : facts.gpu_system.gpus) {
      if (watch && &gpu == facts.selected_gpu()) watch->write(gpu);
    }
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& e) {
    facts.ceilings_failure = one_line(e.what());
  }
  add_datasheet(facts, gpu_name);

  const std::vector<Finding> findings = judge(facts);
  const bool json = settings.format == reports::Format::json;
  ProgressConsole console(tool);
  if (!print_text(json ? to_json(facts, findings) : to_text(facts, findings), console)) return 1;
  return !findings.empty() && findings.front().severity == Severity::broken ? 1 : 0;
}

}  // namespace warpmeter::harness::doctor
