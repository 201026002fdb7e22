#include "tools/harness/doctor/host_facts.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tools/harness/sweep_warnings.hpp"

namespace warpmeter::harness::doctor {
namespace {

namespace fs = std::filesystem;

/// A /proc and a /sys of one's own.
class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "doctor_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }

  /// Two sockets, two cores each, two threads a core: CPUs 0-7, of which this process may use some.
  void server(const std::string& allowed) const {
    std::string cpuinfo;
    for (int cpu = 0; cpu < 8; ++cpu) {
      cpuinfo += "processor\t: " + std::to_string(cpu) +
                 "\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
                 "model name\t: Intel(R) Xeon(R) Platinum 8480+\ncpu MHz\t\t: " +
                 std::to_string(2000 + 100 * cpu) + ".000\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n\n";
      const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/";
      file(folder + "topology/core_id", std::to_string(cpu % 2) + "\n");
      file(folder + "topology/physical_package_id", std::to_string(cpu % 4 / 2) + "\n");
      file(folder + "cpufreq/scaling_governor", cpu < 4 ? "performance\n" : "powersave\n");
      file(folder + "cpufreq/cpuinfo_max_freq", "3800000\n");
    }
    file("/proc/cpuinfo", cpuinfo);
    file("/sys/devices/system/cpu/present", "0-8\n");
    file("/sys/devices/system/cpu/online", "0-7\n");
    file("/proc/self/status", "Name:\tattn_bench\nCpus_allowed:\tff\nCpus_allowed_list:\t" + allowed + "\n");
    file("/sys/devices/system/node/online", "0-1\n");
    file("/sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
    file("/sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
    file("/sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
    file("/proc/meminfo", "MemTotal:       134217728 kB\nMemFree: 1 kB\nMemAvailable:   67108864 kB\n");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    file("/proc/loadavg", "1.50 0.23 0.13 4/95 9451\n");
  }

  std::string root_;
};

TEST_F(FakeRoot, AServer) {
  server("0-7");
  const HostFacts host = read_host_facts(root_);
  EXPECT_EQ(host.cpu, "Intel(R) Xeon(R) Platinum 8480+");
  EXPECT_EQ(host.vendor, "GenuineIntel");
  EXPECT_EQ(host.family, 6);
  EXPECT_EQ(host.model, 143);
  EXPECT_FALSE(host.virtual_machine);
  EXPECT_EQ(host.features, (std::vector<std::string>{"avx2", "avx512f", "avx512_bf16", "amx_bf16"}));
  EXPECT_EQ(host.present.size(), 9U);
  EXPECT_EQ(host.online.size(), 8U);
  EXPECT_EQ(host.allowed.size(), 8U);
  EXPECT_EQ(host.usable_cores, 8);
  EXPECT_EQ(host.allowed_cores, 4);
  EXPECT_EQ(host.smt, true);
  EXPECT_EQ(host.governors, (std::vector<std::string>{"performance", "powersave"}));
  EXPECT_EQ(host.turbo, true);
  EXPECT_EQ(host.clock_mhz, 2350);
  EXPECT_EQ(host.max_clock_mhz, 3800);
  EXPECT_EQ(host.numa_nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(host.machine_numa_nodes, 2U);
  EXPECT_EQ(host.memory_bytes, std::size_t{128} << 30);
  EXPECT_EQ(host.available_bytes, std::size_t{64} << 30);
  EXPECT_EQ(host.huge_pages, "madvise");
  EXPECT_EQ(host.load, 1.5);
  EXPECT_EQ(host.running, 3);
  EXPECT_FALSE(host.cpu_quota);
  EXPECT_FALSE(host.nvidia_device);
}

TEST_F(FakeRoot, APartOfAServer) {
  server("0,4");  // the two threads of one core
  const HostFacts host = read_host_facts(root_);
  EXPECT_EQ(host.allowed, (std::vector<int>{0, 4}));
  EXPECT_EQ(host.usable_cores, 2);
  EXPECT_EQ(host.allowed_cores, 1);
  EXPECT_EQ(host.smt, true);
  EXPECT_EQ(host.numa_nodes, (std::vector<int>{0}));
  EXPECT_EQ(host.clock_mhz, 2200);  // of CPUs 0 and 4 alone

  server("0,2");
  EXPECT_EQ(read_host_facts(root_).smt, false);
  EXPECT_EQ(read_host_facts(root_).governors, (std::vector<std::string>{"performance"}));
}

TEST_F(FakeRoot, AContainersQuota) {
  server("0-7");
  file("/proc/self/cgroup", "0::/\n");
  file("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  file("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  const HostFacts host = read_host_facts(root_);
  EXPECT_EQ(host.cpu_quota, 2.5);
  EXPECT_EQ(host.usable_cores, 3);

  const MachineState machine = machine_state(root_);
  EXPECT_EQ(machine.cores, 8);  // affinity alone: the quota has a warning of its own
  EXPECT_EQ(machine.machine_cores, 8);
  EXPECT_EQ(machine.cpu_quota, 2.5);
  EXPECT_EQ(machine.load, 1.5);
  EXPECT_EQ(machine.running, 3);
}

TEST_F(FakeRoot, AVirtualMachineWithoutFrequencyControl) {
  file("/proc/cpuinfo",
       "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : AMD EPYC\n"
       "cpu MHz : 2596.1\nflags : fpu avx2 hypervisor\n");
  file("/proc/self/status", "Cpus_allowed_list:\t0\n");
  const HostFacts host = read_host_facts(root_);
  EXPECT_TRUE(host.virtual_machine);
  EXPECT_EQ(host.features, (std::vector<std::string>{"avx2"}));
  EXPECT_TRUE(host.governors.empty());
  EXPECT_FALSE(host.turbo || host.max_clock_mhz || host.smt);
  EXPECT_EQ(host.allowed_cores, 0);
  EXPECT_EQ(host.clock_mhz, 2596.1);
}

TEST_F(FakeRoot, NothingAtAll) {
  const HostFacts host = read_host_facts(root_);
  EXPECT_EQ(host.cpu, "");
  EXPECT_TRUE(host.allowed.empty() && host.online.empty() && host.numa_nodes.empty());
  EXPECT_EQ(host.usable_cores, 0);
  EXPECT_FALSE(host.load);
  EXPECT_EQ(host.huge_pages, "");
  EXPECT_EQ(machine_state(root_).cores, 1);
}

TEST_F(FakeRoot, AnNvidiaGpuOnTheBus) {
  file("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n");
  file("/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
  file("/sys/bus/pci/devices/0000:19:00.1/vendor", "0x10de\n");
  file("/sys/bus/pci/devices/0000:19:00.1/class", "0x040300\n");  // the sound of a graphics card
  EXPECT_FALSE(read_host_facts(root_).nvidia_device);
  file("/sys/bus/pci/devices/0000:19:00.0/vendor", "0x10de\n");
  file("/sys/bus/pci/devices/0000:19:00.0/class", "0x030200\n");
  EXPECT_TRUE(read_host_facts(root_).nvidia_device);
}

TEST_F(FakeRoot, NumaNodeOfAGpu) {
  file("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  file("/sys/bus/pci/devices/0000:19:00.0/numa_node", "-1\n");
  EXPECT_EQ(numa_node_of_pci("00000000:3B:00.0", root_), 1);
  EXPECT_EQ(numa_node_of_pci("0000:3b:00.0", root_), 1);
  EXPECT_EQ(numa_node_of_pci("00000000:19:00.0", root_), std::nullopt);
  EXPECT_EQ(numa_node_of_pci("00000000:99:00.0", root_), std::nullopt);
  EXPECT_EQ(numa_node_of_pci("", root_), std::nullopt);
}

TEST(CpuLists, BothWays) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), (std::vector<int>{5}));
  for (const char* text : {"", "x", "3-1", "1,", "1-", "-1", "1;2", "99999999999999999999", "0-4000000000"}) {
    EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
  }
  EXPECT_EQ(cpu_list_text({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(HostFactsHere, ArePlausible) {
  const HostFacts host = read_host_facts();
  EXPECT_GE(host.allowed.size(), 1U);
  EXPECT_GE(host.usable_cores, 1);
  EXPECT_LE(host.allowed.size(), host.present.size());
  EXPECT_GT(host.memory_bytes, host.available_bytes);
  EXPECT_FALSE(host.isa.empty());
}

}  // namespace
}  // namespace warpmeter::harness::doctor
