// What the writers make of the sample document, byte for byte, in tests/reports/golden/. After a wanted change:
//
//     WARPMETER_UPDATE_GOLDEN=1 build/tests/reports_golden_test && git diff tests/reports/golden
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "reports/reader.hpp"
#include "tests/reports/sample.hpp"

namespace warpmeter::reports {
namespace {

using testing::sample_document;
using testing::sample_layout;
using testing::written;

struct Golden {
  const char* file;
  Format format;
  bool wide = false;
  bool samples = false;
  std::vector<std::string> columns = {};
};

void PrintTo(const Golden& golden, std::ostream* out) {
  *out << golden.file;
}

class GoldenTest : public ::testing::TestWithParam<Golden> {
 protected:
  static WriterOptions options() { return {sample_layout(), GetParam().wide, GetParam().columns, GetParam().samples}; }
  static std::string path() { return std::string(WM_GOLDEN_FOLDER) + "/" + GetParam().file; }
};

TEST_P(GoldenTest, WrittenInOneGo) {
  const std::string text = written(sample_document(), GetParam().format, options());
  if (const char* update = std::getenv("WARPMETER_UPDATE_GOLDEN"); update != nullptr && std::string(update) == "1") {
    std::ofstream out(path(), std::ios::binary);
    out << text;
    ASSERT_TRUE(out.good()) << path();
  }
  std::ifstream in(path(), std::ios::binary);
  ASSERT_TRUE(in.good()) << path();
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(text, expected.str());
}

TEST_P(GoldenTest, StreamedRowByRowGivesTheSameBytes) {
  const Document whole = sample_document();
  Document growing = whole;
  growing.rows.clear();
  growing.summary = {};
  std::ostringstream out;
  const auto writer = make_writer(GetParam().format, options());
  writer->begin(growing, out);
  for (const Row& row : whole.rows) {
    growing.rows.push_back(row);
    summarize(growing);
    const std::size_t before = out.str().size();
    writer->row(growing, growing.rows.back(), out);
    if (out.str().size() != before) {
      EXPECT_EQ(out.str().back(), '\n') << "whole lines only";
    }
  }
  writer->end(whole, out);
  EXPECT_EQ(out.str(), written(whole, GetParam().format, options()));
}

TEST_P(GoldenTest, WhatIsReadBackIsWrittenTheSame) {
  for (const Format through : {Format::json, Format::jsonl}) {
    const std::string file = written(sample_document(), through, {{}, false, {}, true});
    const Document document = parse_document(file, "file");
    EXPECT_EQ(written(document, GetParam().format, options()),
              written(sample_document(), GetParam().format, options()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenTest,
    ::testing::Values(Golden{"sample.md", Format::md}, Golden{"sample_wide.md", Format::md, true},
                      Golden{"sample_columns.md", Format::md, false, false, {"impl", "seq_len", "bwd_ms", "fwd_noise"}},
                      Golden{"sample.json", Format::json}, Golden{"sample_samples.json", Format::json, false, true},
                      Golden{"sample.jsonl", Format::jsonl}, Golden{"sample_samples.jsonl", Format::jsonl, false, true},
                      Golden{"sample.csv", Format::csv}, Golden{"sample_wide.csv", Format::csv, true},
                      Golden{"sample_columns.csv", Format::csv, false, false, {"seq_len", "fwd_samples_ms", "reason"}}),
    [](const auto& test) {
      std::string name = test.param.file;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace warpmeter::reports
