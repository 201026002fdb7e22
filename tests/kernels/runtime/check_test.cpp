#include "kernels/runtime/check.hpp"

#include <string>

#include <gtest/gtest.h>

namespace warpmeter {
namespace {

TEST(Check, PassesSilentlyAndDoesNotEvaluateTheMessage) {
  int evaluated = 0;
  const auto message = [&] {
    ++evaluated;
    return std::string("never");
  };
  EXPECT_NO_THROW(WM_CHECK(1 + 1 == 2, message()));
  EXPECT_EQ(evaluated, 0);
}

TEST(Check, EvaluatesTheConditionOnce) {
  int evaluated = 0;
  EXPECT_THROW(WM_CHECK(++evaluated == 0, "once"), CheckError);
  EXPECT_EQ(evaluated, 1);
}

TEST(Check, NamesExpressionPlaceAndMessage) {
  try {
    WM_CHECK(2 > 3, "two is " + std::to_string(2));
    FAIL() << "no exception";
  } catch (const CheckError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("2 > 3"), std::string::npos) << what;
    EXPECT_NE(what.find("check_test.cpp:"), std::string::npos) << what;
    EXPECT_NE(what.find("two is 2"), std::string::npos) << what;
  }
}

TEST(Check, DeviceErrorSaysWhetherItIsSticky) {
  EXPECT_TRUE(DeviceError("lost", true).sticky());
  EXPECT_FALSE(DeviceError("refused", false).sticky());
}

}  // namespace
}  // namespace warpmeter
