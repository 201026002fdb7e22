#include "kernels/runtime/detail/host_info.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace warpmeter::detail {
namespace {

/// A made-up host: files under a temporary directory in place of /proc and /sys.
class HostInfo : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("warpmeter_host_" + std::to_string(getpid()) + "_" +
                                                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    write("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree:          10000 kB\nMemAvailable:     524288 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = root_.string() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  [[nodiscard]] std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_F(HostInfo, WithoutControlGroupsMeminfoDecides) {
  const HostMemory memory = host_memory(root());
  EXPECT_EQ(memory.total, 1024 * kMiB);
  EXPECT_EQ(memory.available, 512 * kMiB);
  EXPECT_EQ(cgroup_cpu_quota(root()), std::nullopt);
}

TEST_F(HostInfo, Version2LimitsOfEveryAncestorBind) {
  write("/proc/self/cgroup", "0::/user/job/step\n");
  write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
  const std::string base = "/sys/fs/cgroup/user";
  write(base + "/job/step/memory.max", "max\n");
  write(base + "/job/step/cpu.max", "max 100000\n");
  write(base + "/job/memory.max", "419430400\n");  // 400 MiB
  write(base + "/job/memory.current", "314572800\n");
  write(base + "/job/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 5\n");
  write(base + "/job/cpu.max", "250000 100000\n");
  write(base + "/memory.max", "838860800\n");
  write(base + "/memory.current", "838860800\n");  // full, but of file cache only
  write(base + "/memory.stat", "inactive_file 838860800\n");
  write(base + "/cpu.max", "150000 100000\n");
  const HostMemory memory = host_memory(root());
  EXPECT_EQ(memory.total, 400 * kMiB);
  EXPECT_EQ(memory.available, 200 * kMiB) << "400 - (300 used - 100 of it reclaimable)";
  EXPECT_EQ(cgroup_cpu_quota(root()), 1.5);
}

TEST_F(HostInfo, TheTightestRoomNeedNotBeTheTightestLimit) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/a/b/memory.max", "209715200\n");  // 200 MiB, empty
  write("/sys/fs/cgroup/a/b/memory.current", "0\n");
  write("/sys/fs/cgroup/a/memory.max", "419430400\n");  // 400 MiB with 10 left
  write("/sys/fs/cgroup/a/memory.current", "408944640\n");
  const HostMemory memory = host_memory(root());
  EXPECT_EQ(memory.total, 200 * kMiB);
  EXPECT_EQ(memory.available, 10 * kMiB);
}

TEST_F(HostInfo, Version1AndTheControllersOwnMounts) {
  write("/proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/slow\n1:name=systemd:/\n0::/\n");
  write("/proc/self/mountinfo",
        "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "268435456\n");
  write("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "134217728\n");
  write("/sys/fs/cgroup/memory/box/memory.stat", "inactive_file 7\ntotal_inactive_file 33554432\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/cpu,cpuacct/slow/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/slow/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const HostMemory memory = host_memory(root());
  EXPECT_EQ(memory.total, 256 * kMiB);
  EXPECT_EQ(memory.available, (256 - 128 + 32) * kMiB);
  EXPECT_EQ(cgroup_cpu_quota(root()), 0.5);
}

// In a container the mount's root is the container's own group, and the group's path is given from the host's root.
TEST_F(HostInfo, PathsBelowTheMountsRoot) {
  write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  write("/proc/self/mountinfo", "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  write("/sys/fs/cgroup/memory.max", "104857600\n");
  write("/sys/fs/cgroup/memory.current", "52428800\n");
  write("/sys/fs/cgroup/inner/memory.max", "max\n");
  const HostMemory memory = host_memory(root());
  EXPECT_EQ(memory.total, 100 * kMiB);
  EXPECT_EQ(memory.available, 50 * kMiB);
}

TEST_F(HostInfo, UsageAboveTheLimitLeavesNothing) {
  write("/proc/self/cgroup", "0::/\n");
  write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  write("/sys/fs/cgroup/memory.max", "104857600\n");
  write("/sys/fs/cgroup/memory.current", "104857601\n");
  EXPECT_EQ(host_memory(root()).available, 0U);
}

TEST_F(HostInfo, CpuName) {
  write("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: X\nmodel\t\t: 17\nmodel name\t: Example CPU 9000 @ 3.00GHz\n");
  EXPECT_EQ(cpu_name(root()), "Example CPU 9000 @ 3.00GHz");
  write("/proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Board 5\n");
  EXPECT_EQ(cpu_name(root()), "Board 5");
  write("/proc/cpuinfo", "processor\t: 0\n");
  EXPECT_EQ(cpu_name(root()), "");
}

TEST_F(HostInfo, LastLevelCache) {
  EXPECT_EQ(last_level_cache_bytes(root()), 0U);
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index";
  const auto add = [&](int index, const char* level, const char* type, const char* size) {
    const std::string directory = cache + std::to_string(index);
    write(directory + "/level", level);
    write(directory + "/type", type);
    write(directory + "/size", size);
  };
  add(0, "1\n", "Data\n", "32K\n");
  add(1, "1\n", "Instruction\n", "64K\n");
  EXPECT_EQ(last_level_cache_bytes(root()), 32U << 10);
  add(2, "2\n", "Unified\n", "1024K\n");
  add(3, "3\n", "Unified\n", "32768K\n");
  EXPECT_EQ(last_level_cache_bytes(root()), std::size_t{32} << 20);
}

TEST(HostInfoHere, IsPlausible) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), sysconf(_SC_NPROCESSORS_CONF));
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.total, 0U);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace warpmeter::detail
