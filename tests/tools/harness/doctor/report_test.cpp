// The doctor's text and JSON, of machines that a test wrote down. WARPMETER_UPDATE_GOLDEN=1 writes them anew.
#include "tools/harness/doctor/report.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>

#include "tests/tools/harness/doctor/healthy.hpp"

namespace warpmeter::harness::doctor {
namespace {

/// Half of what can be odd at once, and names that need escaping.
Facts odd_machine() {
  Facts facts = healthy_gpu_machine();
  facts.build.build_type = "Debug";
  facts.build.dirty = true;
  facts.environment = {{"CUDA_VISIBLE_DEVICES", "1"}, {"OMP_NUM_THREADS", "a \"b\"\n"}};
  facts.cuda.devices = 1;
  GpuFacts& hidden = facts.gpu_system.gpus[0];
  GpuFacts& used = facts.gpu_system.gpus[1];
  hidden = {};
  hidden.name = "NVIDIA H200";
  hidden.uuid = "GPU-0";
  used.cuda_index = 0;
  used.throttle = kThrottleHardwareThermal | kThrottleHardwareSlowdown;
  used.load_throttle = kThrottleSoftwarePowerCap | kThrottleHardwareThermal;
  used.load_clock_mhz = 1200;
  used.utilization_percent = 40;
  used.other_processes = {{4001, 100.0}, {4002, std::nullopt}};
  used.numa_node = 1;
  facts.gpu_system.peers = {{Peer::self, Peer::unknown}, {Peer::none, Peer::self}};
  facts.host.virtual_machine = true;
  facts.host.cpu_quota = 2.5;
  facts.host.governors.clear();
  facts.host.turbo.reset();
  facts.host.max_clock_mhz.reset();
  facts.ceilings[3].measured = 3000;
  facts.ceilings[2].measured = std::numeric_limits<double>::quiet_NaN();
  return facts;
}

Facts broken_machine() {
  Facts facts = healthy_cpu_machine();
  facts.refused_device = "device 'cuda' is not there (built without CUDA); accepted are auto and cpu";
  facts.host.nvidia_device = true;
  facts.host.load.reset();
  facts.ceilings.clear();
  facts.datasheet.reset();
  return facts;
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(WM_GOLDEN_FOLDER) + "/" + name;
  if (std::getenv("WARPMETER_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  EXPECT_EQ(text, std::string(std::istreambuf_iterator<char>(file), {})) << path;
}

struct Machine {
  const char* name;
  Facts facts;
};

TEST(DoctorReport, Golden) {
  for (const Machine& machine : {Machine{"healthy_gpu", healthy_gpu_machine()},
                                 {"healthy_cpu", healthy_cpu_machine()},
                                 {"odd", odd_machine()},
                                 {"broken", broken_machine()}}) {
    const std::vector<Finding> findings = judge(machine.facts);
    expect_golden(std::string(machine.name) + ".md", to_text(machine.facts, findings));
    expect_golden(std::string(machine.name) + ".json", to_json(machine.facts, findings));
  }
}

TEST(DoctorReport, OfNothing) {
  const Facts facts;
  EXPECT_NE(to_text(facts, {}).find("Nothing odd was found."), std::string::npos);
  EXPECT_NE(to_json(facts, {}).find("\"findings\": []"), std::string::npos);
}

}  // namespace
}  // namespace warpmeter::harness::doctor
