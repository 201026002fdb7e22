#include "tools/harness/resume.hpp"

#include <utility>

#include <gtest/gtest.h>

namespace warpmeter::harness {
namespace {

using reports::Document;
using reports::Object;
using reports::Row;
using reports::Status;
using reports::Value;

Object object(std::vector<std::pair<std::string, Value>> fields) {
  Object result;
  for (auto& [name, value] : fields) result.set(name, std::move(value));
  return result;
}

Document document() {
  Document result;
  result.tool = "attn_bench";
  result.device = object({{"name", "NVIDIA H200"}, {"uuid", "GPU-1"}, {"driver", "580"}, {"ceilings", Object()}});
  result.settings = object({{"device", "cuda:0"}, {"seed", 0}, {"max_time_s", 2.0}, {"isolate", false}});
  return result;
}

Row row(int seq_len, Status status, double ms = 1) {
  Row result;
  result.configuration = object({{"impl", "flash"}, {"seq_len", seq_len}, {"causal", true}});
  result.figures = object({{"fwd_ms", ms}});
  result.status = status;
  return result;
}

TEST(Resume, FindsARowWhateverTheOrderOfItsFields) {
  Document earlier = document();
  earlier.rows = {row(16, Status::ok, 3), row(32, Status::ok, 4)};
  const Resume resume(earlier, document(), false);
  const Row* found = resume.find(object({{"causal", true}, {"seq_len", 32}, {"impl", "flash"}}));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found->figures.find("fwd_ms"), Value(4.0));
  EXPECT_EQ(resume.refusal(), "");
}

TEST(Resume, ADifferentConfigurationIsNotFound) {
  Document earlier = document();
  earlier.rows = {row(16, Status::ok)};
  const Resume resume(earlier, document(), false);
  EXPECT_EQ(resume.find(row(17, Status::ok).configuration), nullptr);
  EXPECT_EQ(resume.find(object({{"impl", "flash"}, {"seq_len", 16}})), nullptr);
  EXPECT_EQ(resume.find(object({{"impl", "flash"}, {"seq_len", 16}, {"causal", false}})), nullptr);
  EXPECT_EQ(resume.find(object({{"impl", "flash"}, {"seq_len", 16}, {"causal", true}, {"batch", 2}})), nullptr);
}

TEST(Resume, ResultsStandAndFailuresRunAgain) {
  for (const Status status : {Status::ok, Status::oom, Status::unsupported, Status::skipped}) {
    Document earlier = document();
    earlier.rows = {row(16, status)};
    const Resume resume(earlier, document(), false);
    EXPECT_NE(resume.find(row(16, status).configuration), nullptr) << reports::name(status);
    EXPECT_FALSE(resume.failed_before(row(16, status).configuration));
  }
  for (const Status status :
       {Status::mismatch, Status::error, Status::crashed, Status::timeout, Status::interrupted, Status::not_run}) {
    Document earlier = document();
    earlier.rows = {row(16, status)};
    const Resume resume(earlier, document(), false);
    EXPECT_EQ(resume.find(row(16, status).configuration), nullptr) << reports::name(status);
    EXPECT_TRUE(resume.failed_before(row(16, status).configuration));
  }
}

TEST(Resume, TheLastResultOfAConfigurationCounts) {
  Document earlier = document();
  earlier.rows = {row(16, Status::ok, 1), row(16, Status::ok, 2), row(16, Status::error)};
  const Resume resume(earlier, document(), false);
  EXPECT_EQ(*resume.find(row(16, Status::ok).configuration)->figures.find("fwd_ms"), Value(2.0));
  EXPECT_FALSE(resume.failed_before(row(16, Status::ok).configuration));
}

TEST(Resume, RawSamplesMustBeThereWhereTheyAreAskedFor) {
  Document earlier = document();
  earlier.rows = {row(16, Status::ok), row(32, Status::ok), row(64, Status::oom)};
  earlier.rows[1].figures.set("fwd_samples_ms", std::vector<double>{1, 2});
  const Resume resume(earlier, document(), true);
  EXPECT_EQ(resume.find(row(16, Status::ok).configuration), nullptr);
  EXPECT_NE(resume.find(row(32, Status::ok).configuration), nullptr);
  EXPECT_NE(resume.find(row(64, Status::ok).configuration), nullptr);
}

TEST(Difference, NamesWhatKeepsRowsApart) {
  const auto changed = [](auto change) {
    Document earlier = document();
    change(earlier);
    return difference(earlier, document()).value_or("none");
  };
  EXPECT_EQ(changed([](Document&) {}), "none");
  EXPECT_EQ(changed([](Document& d) { d.schema = "warpmeter/0"; }), "its schema is warpmeter/0, not warpmeter/1");
  EXPECT_EQ(changed([](Document& d) { d.tool = "e2e_bench"; }), "it is a result of e2e_bench, not of attn_bench");
  EXPECT_EQ(changed([](Document& d) { d.device.set("name", "NVIDIA A100"); }),
            "it was measured on another device (name NVIDIA A100, now NVIDIA H200)");
  EXPECT_EQ(changed([](Document& d) { d.device.set("uuid", "GPU-2"); }),
            "it was measured on another device (uuid GPU-2, now GPU-1)");
  EXPECT_EQ(changed([](Document& d) {
              d.device = object({{"cpu", "EPYC"}, {"cores", 8}});
            }),
            "it was measured on another device (name none, now NVIDIA H200)");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("seed", 7); }), "it was measured with seed 7, now 0");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("steps", 3); }), "it was measured with steps 3, now none");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("cache_flush", "clean"); }),
            "it was measured with cache_flush clean, now none");
  Document flushed = document();
  flushed.settings.set("cache_flush", "clean");  // by a program that says how; it is an older one's if it is not there
  EXPECT_EQ(difference(document(), flushed), "it was measured with cache_flush none, now clean");
  flushed.settings.set("cache_flush", nullptr);
  EXPECT_EQ(difference(document(), flushed), std::nullopt);
  // What does not bear on a figure, or is said twice in other words.
  EXPECT_EQ(changed([](Document& d) { d.settings.set("isolate", true); }), "none");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("device", "cuda:1"); }), "none");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("max_time_s", 2); }), "none");
  EXPECT_EQ(changed([](Document& d) { d.settings.set("steps", nullptr); }), "none");
  EXPECT_EQ(changed([](Document& d) { d.device.set("driver", "590"); }), "none");
}

}  // namespace
}  // namespace warpmeter::harness
