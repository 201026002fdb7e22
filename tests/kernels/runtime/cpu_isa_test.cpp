#include "kernels/runtime/cpu_isa.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace warpmeter {
namespace {

TEST(CpuIsa, Names) {
  EXPECT_EQ(name(CpuIsa::generic), "generic");
  EXPECT_EQ(name(CpuIsa::avx2), "avx2");
  EXPECT_EQ(name(CpuIsa::avx512), "avx512");
}

TEST(CpuIsa, OverrideNarrowsOnly) {
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx512, nullptr), CpuIsa::avx512);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx512, "avx2"), CpuIsa::avx2);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx512, "generic"), CpuIsa::generic);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx2, "avx512"), CpuIsa::avx2);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::generic, "avx2"), CpuIsa::generic);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx2, "AVX2"), CpuIsa::avx2);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx2, "sse"), CpuIsa::avx2);
  EXPECT_EQ(choose_cpu_isa(CpuIsa::avx2, ""), CpuIsa::avx2);
}

TEST(CpuIsa, InUseIsChosenFromMachineAndEnvironment) {
  EXPECT_EQ(cpu_isa(), choose_cpu_isa(machine_cpu_isa(), std::getenv("WARPMETER_CPU_ISA")));
}

#if defined(__x86_64__)
// The kernel's list of flags is a second opinion, read another way.
TEST(CpuIsa, AgreesWithTheKernel) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.compare(0, 5, "flags") != 0) {
  }
  if (line.compare(0, 5, "flags") != 0) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  std::istringstream words(line.substr(line.find(':') + 1));
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const auto all = [&](std::initializer_list<const char*> wanted) {
    for (const char* flag : wanted) {
      if (flags.count(flag) == 0) return false;
    }
    return true;
  };
  // The kernel calls lzcnt "abm".
  const bool v3 = all({"avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe"});
  const bool v4 = v3 && all({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  EXPECT_EQ(machine_cpu_isa(), v4 ? CpuIsa::avx512 : v3 ? CpuIsa::avx2 : CpuIsa::generic);
}
#endif

}  // namespace
}  // namespace warpmeter
