#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter::attention::conformance {
namespace {

struct Entry {
  DeviceKind kind;
  std::string name;
};

std::vector<Entry> entries() {
  std::vector<Entry> found;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const Implementation* implementation : implementations(kind)) {
      // flash_long_test.cpp has the CPU's flash kernels.
      if (kind == DeviceKind::cpu && implementation->name().starts_with("flash")) continue;
      found.push_back({kind, std::string(implementation->name())});
    }
  }
  return found;
}

class WholeGrid : public testing::TestWithParam<Entry> {};

TEST_P(WholeGrid, AgreesWithTheReference) {
  const Subject subject(GetParam().kind, GetParam().name);
  if (!subject.missing().empty()) GTEST_SKIP() << subject.missing();
  run_all(subject, length_cases(Extent::whole));
}

INSTANTIATE_TEST_SUITE_P(Attention, WholeGrid, testing::ValuesIn(entries()), [](const auto& test) {
  return std::string(test.param.kind == DeviceKind::cpu ? "cpu_" : "cuda_") + test.param.name;
});

}  // namespace
}  // namespace warpmeter::attention::conformance
