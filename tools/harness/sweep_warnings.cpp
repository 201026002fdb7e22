#include "tools/harness/sweep_warnings.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "tools/harness/doctor/host_facts.hpp"

namespace warpmeter::harness {

MachineState machine_state(const std::string& root) {
  const doctor::HostFacts host = doctor::read_host_facts(root);
  MachineState machine;
  machine.cores = std::max(1, static_cast<int>(host.allowed.size()));
  machine.machine_cores = std::max(machine.cores, static_cast<int>(host.online.size()));
  machine.cpu_quota = host.cpu_quota.value_or(0);
  machine.load = host.load.value_or(0);
  machine.running = host.running;
  return machine;
}

std::vector<std::string> machine_warnings(const BuildInfo& build, const MachineState& machine,
                                          const Settings& settings) {
  std::vector<std::string> warnings;
  if (!build.sanitizers.empty()) {
    warnings.push_back(
        fmt::format("this build has sanitizers ({}): it is many times slower; use the release preset for figures",
                    build.sanitizers));
  } else if (build.build_type == "Debug") {
    warnings.push_back("this is a debug build: host code is several times slower; use the release preset for figures");
  }
  if (settings.device.is_cpu() && machine.cores < machine.machine_cores) {
    warnings.push_back(
        fmt::format("only {} of this machine's {} cores may be used (CPU affinity): figures are of those; taskset or "
                    "the container's settings change it",
                    machine.cores, machine.machine_cores));
  }
  if (settings.device.is_cpu() && machine.cpu_quota > 0 && machine.cpu_quota < machine.cores) {
    warnings.push_back(
        fmt::format("the container allows {:.3g} cores' worth of time on {} cores: threads are stopped in between and "
                    "figures are noisy; set OMP_NUM_THREADS to at most that",
                    machine.cpu_quota, machine.cores));
  }
  // The load average remembers a minute: a run that has just ended here must not be blamed, so others must run now too.
  const bool host_time_counts = settings.device.is_cpu() || settings.timer == TimerKind::wall;
  if (host_time_counts && machine.load > 0.5 * machine.machine_cores &&
      machine.running > 0.25 * machine.machine_cores) {
    warnings.push_back(
        fmt::format("other programs are running (load {:.1f} on {} cores): they take time away from what is measured; "
                    "wait for them, or look at noise and min_ms",
                    machine.load, machine.machine_cores));
  }
  return warnings;
}

}  // namespace warpmeter::harness
