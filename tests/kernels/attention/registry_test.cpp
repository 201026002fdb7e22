#include "kernels/attention/registry.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace warpmeter::attention {
namespace {

TEST(AttentionRegistry, TheCpuHasItsImplementationsInTheOrderOfTables) {
  std::vector<std::string> names;
  for (const Implementation* implementation : implementations(DeviceKind::cpu)) {
    names.emplace_back(implementation->name());
    EXPECT_EQ(implementation->device_kind(), DeviceKind::cpu);
    EXPECT_FALSE(implementation->description().empty());
    EXPECT_EQ(implementation->description().find('\n'), std::string_view::npos);
    EXPECT_EQ(find_implementation(DeviceKind::cpu, implementation->name()), implementation);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"reference", "naive", "fused", "flash", "flash_two_pass"}));
}

TEST(AttentionRegistry, EveryImplementationOfAnyKindHasAKnownNameOnce) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    std::set<std::string_view> names;
    for (const Implementation* implementation : implementations(kind)) {
      EXPECT_TRUE(known_implementation(implementation->name())) << implementation->name();
      EXPECT_TRUE(names.insert(implementation->name()).second) << implementation->name();
      EXPECT_EQ(implementation->device_kind(), kind);
    }
  }
}

TEST(AttentionRegistry, NamesOfOtherBuildsAreKnownButNotHere) {
  for (const std::string_view name : {"flash_sm80", "flash_sm90", "cudnn"}) {
    EXPECT_TRUE(known_implementation(name));
    EXPECT_EQ(find_implementation(DeviceKind::cpu, name), nullptr);
  }
  EXPECT_FALSE(known_implementation("flush"));
  EXPECT_FALSE(known_implementation(""));
  EXPECT_EQ(find_implementation(DeviceKind::cpu, "flush"), nullptr);
  EXPECT_EQ(known_implementation_names().front(), "reference");
}

}  // namespace
}  // namespace warpmeter::attention
