#include "reports/writer.hpp"

#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

#include "reports/reader.hpp"
#include "tests/reports/sample.hpp"

namespace warpmeter::reports {
namespace {

using testing::sample_document;
using testing::sample_layout;
using testing::written;

/// A row of group `impl` with one figure a name.
Row make_row(const char* impl, int seq_len, std::vector<Object::Field> figures, Status status = Status::ok) {
  Row row;
  row.configuration.set("impl", impl);
  row.configuration.set("seq_len", seq_len);
  row.figures = Object(std::move(figures));
  row.status = status;
  if (status != Status::ok) row.reason = "why";
  row.rerun = "bench --seq-len " + std::to_string(seq_len);
  return row;
}

Document make_document(std::vector<Row> rows) {
  Document document;
  document.tool = "bench";
  document.row_keys = {"impl", "seq_len"};
  document.rows = std::move(rows);
  return document;
}

const TableLayout kLayout = {{"impl"}, {"seq_len", "a_ms", "b_ms", "status"}, {}};

TEST(FormatNames, ReadBack) {
  for (const Format format : {Format::md, Format::json, Format::jsonl, Format::csv}) {
    EXPECT_EQ(parse_format(name(format)), format);
  }
  EXPECT_FALSE(parse_format("xml"));
  EXPECT_FALSE(parse_format(""));
}

TEST(FormatOfPath, GoesByTheEnding) {
  EXPECT_EQ(format_of_path("a/b.c/results.md"), Format::md);
  EXPECT_EQ(format_of_path("results.json"), Format::json);
  EXPECT_EQ(format_of_path("results.json.jsonl"), Format::jsonl);
  EXPECT_EQ(format_of_path("./x.csv"), Format::csv);
  for (const char* path : {"", "results", "md", ".md", "a/.json", "x.JSON", "x.json/", "x.json/y", "x.", "x.txt"}) {
    EXPECT_FALSE(format_of_path(path)) << path;
  }
}

TEST(ColumnNames, ListsEachOnce) {
  const TableLayout layout = {{"impl"}, {"seq_len", "fwd_ms", "status"}, {"fwd_noise", "impl"}};
  EXPECT_EQ(column_names(layout, {"impl", "batch", "seq_len"}),
            (std::vector<std::string>{"impl", "batch", "seq_len", "fwd_ms", "status", "fwd_noise", "reason", "rerun"}));
}

TEST(TellApart, AddsOnlyWhatItTakes) {
  const std::vector<std::string> keys = {"impl", "batch", "heads", "head_dim", "seq_len", "kv_len"};
  const auto configuration = [](const char* impl, int batch, int heads, int seq_len) {
    return Object({{"impl", impl},
                   {"batch", batch},
                   {"heads", heads},
                   {"head_dim", 64 / heads},
                   {"seq_len", seq_len},
                   {"kv_len", seq_len}});
  };
  // What only follows the columns is not needed.
  EXPECT_EQ(tell_apart(kLayout, keys, {configuration("a", 1, 1, 1), configuration("a", 1, 1, 2)}).columns,
            kLayout.columns);
  // The group tells them apart.
  EXPECT_EQ(tell_apart(kLayout, keys, {configuration("a", 1, 1, 1), configuration("b", 8, 1, 1)}).columns,
            kLayout.columns);
  EXPECT_EQ(tell_apart(kLayout, keys, {configuration("a", 1, 1, 1), configuration("a", 8, 1, 1)}).columns,
            (std::vector<std::string>{"seq_len", "batch", "a_ms", "b_ms", "status"}));
  // heads tells, so head_dim is not needed too.
  EXPECT_EQ(
      tell_apart(kLayout, keys, {configuration("a", 1, 1, 1), configuration("a", 8, 1, 1), configuration("a", 1, 2, 1)})
          .columns,
      (std::vector<std::string>{"seq_len", "batch", "heads", "a_ms", "b_ms", "status"}));
  EXPECT_EQ(tell_apart(kLayout, keys, {}).columns, kLayout.columns);
}

TEST(Markdown, OpensATableWithTheColumnsThatRowsHave) {
  const Document document = make_document({make_row("x", 1, {{"a_ms", 1.5}}), make_row("x", 2, {{"a_ms", nullptr}})});
  EXPECT_EQ(written(document, Format::md, {kLayout}),
            "### x\n\n"
            "| seq_len |   a_ms | status |\n"
            "|--------:|-------:|--------|\n"
            "|       1 |    1.5 | ok     |\n"
            "|       2 |        | ok     |\n"
            "\nMeasured by bench.\n");
}

TEST(Markdown, HeadingsStandForFieldNames) {
  TableLayout layout = kLayout;
  layout.headings = {{"a_ms", "A (ms)"}, {"b_ms", "B (ms), longer than its values"}};
  const std::string text =
      written(make_document({make_row("naive", 8, {{"a_ms", 1.5}, {"b_ms", 2.5}})}), Format::md, {.layout = layout});
  EXPECT_NE(text.find("| A (ms) | B (ms), longer than its values |"), std::string::npos) << text;
  EXPECT_NE(text.find("|    1.5 |                            2.5 |"), std::string::npos) << text;
}

TEST(Markdown, KeepsAnEmptyColumnThatIsNull) {
  const Document document = make_document({make_row("x", 1, {{"a_ms", nullptr}, {"b_ms", 2}})});
  EXPECT_NE(written(document, Format::md, {kLayout}).find("| seq_len |   a_ms |   b_ms | status |"), std::string::npos);
}

TEST(Markdown, ContinuesInAnotherTableWhenAColumnTurnsUpLate) {
  const Document document = make_document(
      {make_row("x", 1, {{"b_ms", 1}}), make_row("x", 2, {{"a_ms", 5}, {"b_ms", 2}}), make_row("x", 3, {{"b_ms", 3}})});
  EXPECT_EQ(written(document, Format::md, {kLayout}),
            "### x\n\n"
            "| seq_len |   b_ms | status |\n"
            "|--------:|-------:|--------|\n"
            "|       1 |      1 | ok     |\n"
            "\n### x (continued)\n\n"
            "| seq_len |   a_ms |   b_ms | status |\n"
            "|--------:|-------:|-------:|--------|\n"
            "|       2 |      5 |      2 | ok     |\n"
            "|       3 |        |      3 | ok     |\n"
            "\nMeasured by bench.\n");
}

TEST(Markdown, ContinuesAGroupThatComesBack) {
  const std::string text =
      written(make_document({make_row("x", 1, {}), make_row("y", 1, {}), make_row("x", 2, {})}), Format::md, {kLayout});
  EXPECT_NE(text.find("### x\n"), std::string::npos);
  EXPECT_NE(text.find("### y\n"), std::string::npos);
  EXPECT_NE(text.find("### x (continued)\n"), std::string::npos);
}

TEST(Markdown, WaitsForTheFirstOkRowToSettleTheColumns) {
  const Document document =
      make_document({make_row("x", 1, {}, Status::oom), make_row("x", 2, {{"a_ms", 5}}), make_row("x", 3, {})});
  std::ostringstream out;
  const auto writer = make_writer(Format::md, {kLayout});
  writer->begin(document, out);
  writer->row(document, document.rows[0], out);
  EXPECT_EQ(out.str(), "");
  writer->row(document, document.rows[1], out);
  EXPECT_NE(out.str().find("|       1 |        | oom    |\n|       2 |      5 | ok     |\n"), std::string::npos);
  const std::size_t before = out.str().size();
  writer->row(document, document.rows[2], out);
  EXPECT_EQ(out.str().substr(before), "|       3 |        | ok     |\n");
}

TEST(Markdown, SaysWhyRowsAreNotOk) {
  const std::string text = written(
      make_document({make_row("x", 1, {}, Status::oom), make_row("x", 2, {}, Status::crashed)}), Format::md, {kLayout});
  EXPECT_NE(text.find("\n2 of 2 rows are not ok:\n\n- x, seq_len 1: oom: why\n- x, seq_len 2: crashed: why\n"),
            std::string::npos)
      << text;
}

TEST(Markdown, SkippedRowsWhoseReasonTheTableHasAreNotListed) {
  Row dry = make_row("x", 1, {}, Status::skipped);
  dry.reason = "dry run";
  const Document document = make_document({dry, make_row("x", 2, {}, Status::crashed)});
  const std::string with = written(document, Format::md, {kLayout, false, {"seq_len", "status", "reason"}});
  EXPECT_NE(with.find("| skipped | dry run |"), std::string::npos) << with;
  EXPECT_EQ(with.find("x, seq_len 1: skipped"), std::string::npos) << with;
  EXPECT_NE(with.find("\n1 of 2 rows is not ok:\n\n- x, seq_len 2: crashed: why\n"), std::string::npos) << with;
  const std::string without = written(document, Format::md, {kLayout});
  EXPECT_NE(without.find("\n2 of 2 rows are not ok:\n\n- x, seq_len 1: skipped: dry run\n"), std::string::npos);
}

TEST(Markdown, TitlesByWhatTheValuesMean) {
  Row row = make_row("x|y", 1, {});
  row.configuration.set("causal", false);
  Document document = make_document({row});
  document.row_keys.emplace_back("causal");
  TableLayout layout = kLayout;
  layout.group_by = {"impl", "causal", "seq_len", "absent"};
  EXPECT_TRUE(written(document, Format::md, {layout}).starts_with("### x\\|y, not causal, absent none\n"))
      << written(document, Format::md, {layout});
}

TEST(Markdown, HasNoTitleWithoutGroups) {
  TableLayout layout = kLayout;
  layout.group_by.clear();
  EXPECT_TRUE(written(make_document({make_row("x", 1, {})}), Format::md, {layout}).starts_with("| seq_len |"));
}

TEST(Markdown, ExactColumnsStayWhenNoRowHasThem) {
  const Document document = make_document({make_row("x", 1, {}), make_row("y", 1, {})});
  EXPECT_EQ(written(document, Format::md, {kLayout, false, {"impl", "b_ms"}}),
            "| impl |   b_ms |\n"
            "|------|-------:|\n"
            "| x    |        |\n"
            "| y    |        |\n"
            "\nMeasured by bench.\n");
}

TEST(Markdown, AlignsByCharactersNotBytes) {
  const Document document = make_document({make_row("\xC3\xA9\xC3\xA9\xC3\xA9", 1, {}), make_row("abcd", 2, {})});
  TableLayout layout = {{}, {"impl", "seq_len"}, {}};
  EXPECT_TRUE(written(document, Format::md, {layout})
                  .starts_with("| impl | seq_len |\n"
                               "|------|--------:|\n"
                               "| \xC3\xA9\xC3\xA9\xC3\xA9  |       1 |\n"
                               "| abcd |       2 |\n"));
}

TEST(Markdown, SaysSoWhenThereAreNoRows) {
  EXPECT_EQ(written(make_document({}), Format::md, {kLayout}), "No rows.\n\nMeasured by bench.\n");
}

TEST(Csv, QuotesAndTellsNullFromEmpty) {
  Row row = make_row("a,\"b\"\nc", 1, {{"a_ms", nullptr}, {"b_ms", ""}});
  const Document document = make_document({row});
  EXPECT_EQ(written(document, Format::csv, {kLayout}),
            "impl,seq_len,a_ms,b_ms,status,reason\n"
            "\"a,\"\"b\"\"\nc\",1,,\"\",ok,\n");
}

TEST(Csv, HasTheHeaderBeforeAnyRow) {
  std::ostringstream out;
  const auto writer = make_writer(Format::csv, {kLayout, true});
  writer->begin(make_document({}), out);
  EXPECT_EQ(out.str(), "impl,seq_len,a_ms,b_ms,status,reason,rerun\n");
}

TEST(Json, DropsSamplesUnlessAskedFor) {
  const Document document = make_document({make_row(
      "x", 1, {{"a_samples_ms", std::vector<double>{1, 2}}, {"b_samples_ms", nullptr}, {"a_samples_kept", 7}})});
  const std::string without = written(document, Format::json);
  EXPECT_EQ(without.find("a_samples_ms"), std::string::npos);
  EXPECT_EQ(without.find("b_samples_ms"), std::string::npos);
  EXPECT_NE(without.find("\"a_samples_kept\": 7"), std::string::npos);
  const std::string with = written(document, Format::jsonl, {{}, false, {}, true});
  EXPECT_NE(with.find("\"a_samples_ms\": [1, 2], \"b_samples_ms\": null"), std::string::npos);
}

TEST(Json, IsWholeWithoutRows) {
  EXPECT_EQ(parse_document(written(make_document({}), Format::json), "x").rows.size(), 0U);
  EXPECT_EQ(parse_document(written(make_document({}), Format::jsonl), "x").rows.size(), 0U);
}

TEST(Json, RefusesRowsThatBreakTheirContract) {
  const auto refused = [](const Row& row) {
    for (const Format format : {Format::json, Format::jsonl}) {
      EXPECT_THROW((void)written(make_document({row}), format), std::logic_error);
    }
  };
  refused(make_row("x", 1, {{"impl", "y"}}));
  refused(make_row("x", 1, {{"status", "y"}}));
  Row row = make_row("x", 1, {});
  row.configuration.set("batch", 8);  // not in row_keys: it would come back as a figure
  refused(row);
  row = make_row("x", 1, {});
  row.configuration = {};
  row.figures.set("seq_len", 1);  // in row_keys: it would come back as configuration
  refused(row);
  row = make_row("x", 1, {{"type", "y"}});
  EXPECT_THROW((void)written(make_document({row}), Format::jsonl), std::logic_error);
}

TEST(RowToJson, ReadsBackToTheSameRow) {
  const Document document = sample_document();
  for (const Row& row : document.rows) {
    const std::string text = row_to_json(row, true);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const Row back = row_from_json(text, document.row_keys);
    EXPECT_TRUE(back.configuration == row.configuration);
    EXPECT_EQ(back.status, row.status);
    EXPECT_EQ(back.rerun, row.rerun);
    EXPECT_EQ(row_to_json(back, true), text);
  }
}

TEST(Writers, GiveTheStreamsErrorState) {
  class Full : public std::streambuf {};  // takes nothing
  for (const Format format : {Format::md, Format::json, Format::jsonl, Format::csv}) {
    Full full;
    std::ostream out(&full);
    write_document(sample_document(), format, {sample_layout()}, out);
    EXPECT_FALSE(out.good()) << name(format);
  }
}

}  // namespace
}  // namespace warpmeter::reports
