#include "tools/harness/sweep_warnings.hpp"

#include <algorithm>
#include <fstream>

#include <fmt/core.h>
#include <unistd.h>

namespace warpmeter::harness {

MachineState machine_state(int cores) {
  MachineState machine;
  machine.cores = cores;
  machine.machine_cores = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  std::ifstream load("/proc/loadavg");  // "0.07 0.23 0.13 1/95 9451"
  double five = 0, fifteen = 0;
  if (load >> machine.load >> five >> fifteen >> machine.running) {
    machine.running = std::max(0, machine.running - 1);  // this thread
  }
  std::ifstream cpu_max("/sys/fs/cgroup/cpu.max");  // "max 100000" or "200000 100000"
  double quota = 0, period = 0;
  if (cpu_max >> quota >> period && period > 0) machine.cpu_quota = quota / period;
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
