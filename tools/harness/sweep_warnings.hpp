#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/harness/provenance.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {

/// The machine as it is when a sweep begins.
struct MachineState {
  int cores = 0;          ///< that this process may use (affinity)
  int machine_cores = 0;  ///< online
  double cpu_quota = 0;   ///< cores' worth of time that the cgroup allows; 0: no limit
  double load = 0;        ///< load average of the last minute
  int running = 0;        ///< threads of other processes that run or want to at this moment
};
/// `root` is put before /proc and /sys (for tests).
[[nodiscard]] MachineState machine_state(const std::string& root = "");

/// What stands between this run and figures to trust: each text says what was seen, why it matters and what to do.
[[nodiscard]] std::vector<std::string> machine_warnings(const BuildInfo& build, const MachineState& machine,
                                                        const Settings& settings);

}  // namespace warpmeter::harness
