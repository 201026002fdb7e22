#include "reports/detail/json_text.hpp"

#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "reports/detail/utf8.hpp"

namespace warpmeter::reports::detail {
namespace {

std::string json(const Value& value) {
  std::string text;
  append_json(text, value);
  return text;
}

TEST(ValidUtf8, ReplacesWhatIsBroken) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(valid_utf8("plain"), "plain");
  EXPECT_EQ(valid_utf8("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(valid_utf8("a\xFF\x62"), "a" + bad + "b");
  EXPECT_EQ(valid_utf8("\x80"), bad);
  EXPECT_EQ(valid_utf8("\xC0\xAF"), bad + bad) << "overlong";
  EXPECT_EQ(valid_utf8("\xE0\x80\xAF"), bad + bad + bad) << "overlong";
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), bad + bad + bad) << "surrogate";
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), bad + bad + bad + bad) << "above U+10FFFF";
  EXPECT_EQ(valid_utf8("\xE2\x82"), bad) << "cut short: one replacement";
  EXPECT_EQ(valid_utf8("\xF0\x9F\x98"), bad) << "cut short: one replacement";
  EXPECT_EQ(valid_utf8("\xE2\x82x"), bad + "x");
  EXPECT_EQ(code_points("\xC3\xA9\xE2\x82\xAC"), 2U);
}

TEST(JsonText, EscapesStrings) {
  EXPECT_EQ(json("a\"b\\c/\b\f\n\r\t\x01\x1f\x7f"), "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
  EXPECT_EQ(json(std::string("a\0b", 3)), "\"a\\u0000b\"");
  EXPECT_EQ(json("\xC3\xA9\xFF"), "\"\xC3\xA9\xEF\xBF\xBD\"");
}

TEST(JsonText, WritesTheShortestNumberThatReadsBack) {
  EXPECT_EQ(json(0.1), "0.1");
  EXPECT_EQ(json(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(json(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(json(5e-324), "5e-324");
  EXPECT_EQ(json(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(json(9007199254740993.0), "9007199254740992");
  EXPECT_EQ(json(2.0), "2");
  EXPECT_EQ(json(-0.0), "-0.0");
  EXPECT_EQ(json(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(json(std::numeric_limits<std::uint64_t>::max()), "18446744073709551616");
}

TEST(JsonText, WritesNullForWhatIsNotFinite) {
  EXPECT_EQ(json(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(json(-std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json(std::vector<double>{1.5, std::numeric_limits<double>::infinity()}), "[1.5, null]");
}

TEST(JsonText, NestsArraysAndObjects) {
  Object object;
  EXPECT_EQ(json(object), "{}");
  object.set("b", Value::Array{});
  Object inner;
  inner.set("x", "y");
  object.set("a", Value::Array{true, nullptr, inner});
  EXPECT_EQ(json(object), R"({"b": [], "a": [true, null, {"x": "y"}]})");
}

TEST(JsonText, RefusesNamesThatAreTheSameInTheFile) {
  Object object;
  object.set("a\xFE", 1);
  object.set("a\xFF", 2);
  EXPECT_THROW((void)json(object), std::logic_error);
}

TEST(JsonText, RefusesBottomlessNesting) {
  Value value;
  for (int i = 0; i < kMaxDepth; ++i) value = Value(Value::Array{value});
  EXPECT_EQ(json(value).size(), 2 * kMaxDepth + 4U);
  EXPECT_THROW((void)json(Value(Value::Array{value})), std::logic_error);
}

}  // namespace
}  // namespace warpmeter::reports::detail
