#include "reports/model.hpp"

#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

namespace warpmeter::reports {
namespace {

TEST(Object, KeepsTheOrderInWhichNamesWereSet) {
  Object object;
  object.set("b", 1);
  object.set("a", "x");
  object.set("b", 2.5);
  ASSERT_EQ(object.fields().size(), 2U);
  EXPECT_EQ(object.fields()[0].first, "b");
  EXPECT_EQ(*object.fields()[0].second.as_double(), 2.5);
  EXPECT_EQ(object.fields()[1].first, "a");
  EXPECT_TRUE(object.has("a"));
  EXPECT_EQ(object.find("c"), nullptr);
}

TEST(Object, IsEqualWithTheSameFieldsInTheSameOrder) {
  const Object ab({{"a", 1}, {"b", Value::Array{1, "x", nullptr}}});
  EXPECT_TRUE(ab == Object({{"a", 1}, {"b", Value::Array{1, "x", nullptr}}}));
  EXPECT_FALSE(ab == Object({{"b", Value::Array{1, "x", nullptr}}, {"a", 1}}));
  EXPECT_FALSE(ab == Object({{"a", 1}, {"b", Value::Array{1, "y", nullptr}}}));
  EXPECT_FALSE(ab == Object({{"a", 1}}));
}

TEST(Object, RefusesANameTwice) {
  try {
    const Object object({{"a", 1}, {"b", 2}, {"a", 3}});
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "field 'a' comes twice");
  }
}

TEST(Value, HoldsUnsignedNumbersAsIntegersWhereTheyFit) {
  const auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(*Value(largest).as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Value(largest + 1).as_int(), nullptr);
  EXPECT_EQ(*Value(largest + 1).as_double(), 0x1p63);
}

TEST(Value, IsANumberWhenFinite) {
  EXPECT_EQ(Value(3).as_number(), 3.0);
  EXPECT_EQ(Value(0.5).as_number(), 0.5);
  EXPECT_FALSE(Value(std::numeric_limits<double>::quiet_NaN()).as_number());
  EXPECT_FALSE(Value(std::numeric_limits<double>::infinity()).as_number());
  EXPECT_FALSE(Value(true).as_number());
  EXPECT_FALSE(Value("3").as_number());
  EXPECT_FALSE(Value().as_number());
}

TEST(Value, IsNullForAnEmptyOptional) {
  EXPECT_TRUE(Value(std::optional<double>()).is_null());
  EXPECT_EQ(*Value(std::optional<double>(2.0)).as_double(), 2.0);
  EXPECT_EQ(*Value(std::optional<std::string>("x")).as_string(), "x");
  EXPECT_EQ(Value(std::vector<double>{1, 2}).as_array()->size(), 2U);
}

TEST(StatusNames, ReadBackToTheSameStatus) {
  const char* names[] = {"ok",    "oom",     "unsupported", "skipped",     "mismatch",
                         "error", "crashed", "timeout",     "interrupted", "not_run"};
  for (int i = 0; i < 10; ++i) {
    const auto status = static_cast<Status>(i);
    EXPECT_EQ(name(status), names[i]);
    EXPECT_EQ(parse_status(names[i]), status);
    EXPECT_EQ(is_failure(status), i >= 4) << names[i];
  }
  for (const char* wrong : {"", "OK", "ok ", "notrun", "failed"}) EXPECT_FALSE(parse_status(wrong)) << wrong;
}

TEST(Field, LooksInTheConfigurationThenTheFiguresThenTheOutcome) {
  Row row;
  row.configuration.set("seq_len", 256);
  row.figures.set("fwd_ms", nullptr);
  row.status = Status::oom;
  row.reason = "too large";
  row.rerun = "attn_bench --seq-len 256";
  EXPECT_EQ(*field(row, "seq_len")->as_int(), 256);
  EXPECT_TRUE(field(row, "fwd_ms")->is_null());
  EXPECT_EQ(*field(row, "status")->as_string(), "oom");
  EXPECT_EQ(*field(row, "reason")->as_string(), "too large");
  EXPECT_EQ(*field(row, "rerun")->as_string(), "attn_bench --seq-len 256");
  EXPECT_FALSE(field(row, "bwd_ms"));
  row.reason.clear();
  EXPECT_TRUE(field(row, "reason")->is_null());
}

TEST(Summarize, CountsEveryStatusAndKeepsTheRest) {
  Document document;
  document.summary.set("seconds", 1.5);
  document.summary.set("rows", 99);
  for (const Status status : {Status::ok, Status::oom, Status::ok, Status::not_run}) {
    document.rows.emplace_back();
    document.rows.back().status = status;
  }
  summarize(document);
  const auto count = [&](const char* name) { return *document.summary.find(name)->as_int(); };
  EXPECT_EQ(count("rows"), 4);
  EXPECT_EQ(count("ok"), 2);
  EXPECT_EQ(count("oom"), 1);
  EXPECT_EQ(count("not_run"), 1);
  EXPECT_EQ(count("crashed"), 0);
  EXPECT_EQ(*document.summary.find("seconds")->as_double(), 1.5);
  EXPECT_EQ(document.summary.fields().size(), 12U);
}

}  // namespace
}  // namespace warpmeter::reports
