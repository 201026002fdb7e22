#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter::attention::conformance {
namespace {

TEST(FlashCpuLong, WholeGrid) {
  run_all(Subject(DeviceKind::cpu, "flash"), length_cases(Extent::whole));
}

TEST(FlashTwoPassCpuLong, WholeGrid) {
  run_all(Subject(DeviceKind::cpu, "flash_two_pass"), length_cases(Extent::whole));
}

}  // namespace
}  // namespace warpmeter::attention::conformance
