#include "reports/reader.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/reports/sample.hpp"

namespace warpmeter::reports {
namespace {

using testing::sample_document;
using testing::written;

constexpr const char* kEnvelope =
    R"("schema": "warpmeter/1", "tool": "t", "version": {}, "argv": ["t"], "started_at": "now", "device": {}, )"
    R"("libraries": {}, "settings": {}, "row_keys": ["k"])";
constexpr const char* kRow = R"({"k": 1, "a_ms": 2.5, "status": "ok", "reason": null, "rerun": "t --k 1"})";

std::string document_text(const std::string& rows, const std::string& more = R"(, "summary": {})") {
  return std::string("{") + kEnvelope + R"(, "rows": [)" + rows + "]" + more + "}";
}

std::string with_type(const char* type, const std::string& object) {
  const std::string rest = object.substr(1);
  return std::string("{\"type\": \"") + type + "\"" + (rest == "}" ? "" : ", ") + rest + "\n";
}

std::string header_line() {
  return with_type("header", std::string("{") + kEnvelope + "}");
}
std::string row_line() {
  return with_type("row", kRow);
}
std::string summary_line() {
  return with_type("summary", R"({"rows": 1})");
}

/// The one-line complaint about `text`; "" and a failure when there is none.
std::string complaint(const std::string& text) {
  try {
    (void)parse_document(text, "x.json");
  } catch (const ReadError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    EXPECT_LT(std::string(e.what()).size(), 400U);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 300);
  return "";
}

TEST(Reader, ReadsWhatWasWrittenToTheSameBytes) {
  for (const Format format : {Format::json, Format::jsonl}) {
    for (const bool samples : {false, true}) {
      const WriterOptions options = {{}, false, {}, samples};
      const std::string text = written(sample_document(), format, options);
      EXPECT_EQ(written(parse_document(text, "x"), format, options), text);
    }
  }
}

TEST(Reader, TakesTheFlatRowApart) {
  const Document document = parse_document(document_text(kRow), "x");
  ASSERT_EQ(document.rows.size(), 1U);
  const Row& row = document.rows[0];
  EXPECT_EQ(*row.configuration.find("k")->as_int(), 1);
  EXPECT_EQ(*row.figures.find("a_ms")->as_double(), 2.5);
  EXPECT_EQ(row.configuration.fields().size(), 1U);
  EXPECT_EQ(row.figures.fields().size(), 1U);
  EXPECT_EQ(row.status, Status::ok);
  EXPECT_EQ(row.reason, "");
  EXPECT_EQ(row.rerun, "t --k 1");
}

TEST(Reader, ReadsADocumentInOneLineAndOneAfterAByteOrderMark) {
  EXPECT_EQ(parse_document(document_text(kRow) + "\n\n", "x").rows.size(), 1U);
  EXPECT_EQ(parse_document("\xEF\xBB\xBF" + document_text(kRow), "x").rows.size(), 1U);
}

TEST(Reader, KeepsNumbersApart) {
  const Document document = parse_document(
      document_text(R"({"i": -9223372036854775808, "u": 18446744073709551615, "f": 1e3, "z": -0.0, "big": 1e22,)"
                    R"("status": "ok", "reason": null, "rerun": ""})"),
      "x");
  const Object& figures = document.rows.at(0).figures;
  EXPECT_EQ(*figures.find("i")->as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(*figures.find("u")->as_double(), 0x1p64);
  EXPECT_EQ(*figures.find("f")->as_double(), 1000.0);
  EXPECT_TRUE(std::signbit(*figures.find("z")->as_double()));
  EXPECT_EQ(*figures.find("big")->as_double(), 1e22);
}

TEST(Reader, SaysWhereAFileIsDamaged) {
  EXPECT_EQ(complaint(""), "x.json: is empty");
  EXPECT_EQ(complaint(" \n\n"), "x.json: is empty");
  EXPECT_EQ(complaint("hello").substr(0, 26), "x.json: line 1, column 1: ");
  EXPECT_EQ(complaint("{\n  \"schema\": \"warpmeter/1\",\n  \"tool\": nul\n}").substr(0, 27),
            "x.json: line 3, column 14: ");
  const std::string whole = document_text(kRow);
  EXPECT_NE(complaint(whole.substr(0, whole.size() - 1)).find("unexpected end of input"), std::string::npos);
  EXPECT_NE(complaint(whole + "x").find("column"), std::string::npos);
  EXPECT_NE(complaint(whole + whole).find("column"), std::string::npos);
}

TEST(Reader, RefusesWhatIsNotJson) {
  for (const char* value :
       {"NaN",      "Infinity", "-Infinity",  "nan",     "01",          "+1",       "1.",           ".5",
        "0x10",     "'a'",      "tru",        "\"\\x\"", "\"\\ud800\"", "\"\xFF\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"",
        "\"a\nb\"", "[1,]",     "{\"a\":1,}", "/*c*/1",  "1e999",       "-1e999"}) {
    const std::string row = std::string(R"({"status": "ok", "reason": null, "rerun": "", "v": )") + value + "}";
    complaint(document_text(row));
  }
  complaint(std::string("\0", 1));
  complaint(document_text(kRow) + std::string("\0", 1));
}

TEST(Reader, RefusesAKeyTwice) {
  EXPECT_NE(complaint(R"({"schema": "warpmeter/1", "schema": "warpmeter/1"})").find("the key 'schema' comes twice"),
            std::string::npos);
  EXPECT_NE(complaint(document_text(R"({"a": 1, "\u0061": 2, "status": "ok", "reason": null, "rerun": ""})"))
                .find("the key 'a' comes twice"),
            std::string::npos);
}

TEST(Reader, RefusesBottomlessNesting) {
  for (const char* open : {"[", "{\"a\":", "[{\"a\":"}) {
    std::string bomb;
    for (int i = 0; i < 100000; ++i) bomb += open;
    EXPECT_NE(complaint(bomb).find("nested too deeply"), std::string::npos);
    EXPECT_NE(complaint(document_text(std::string(R"({"v": )") + bomb)).find("nested too deeply"), std::string::npos);
  }
}

TEST(Reader, CopesWithManyKeys) {
  std::string row = "{";
  for (int i = 0; i < 200000; ++i) row.append("\"k").append(std::to_string(i)).append("\": 1, ");
  row += R"("status": "ok", "reason": null, "rerun": ""})";
  EXPECT_EQ(parse_document(document_text(row), "x").rows.at(0).figures.fields().size(), 200000U);
}

TEST(Reader, RefusesOtherDocuments) {
  EXPECT_EQ(complaint("[]"), "x.json: not a result of this suite: an array, not an object");
  EXPECT_EQ(complaint("3"), "x.json: not a result of this suite: a number, not an object");
  EXPECT_EQ(complaint("{}"), "x.json: not a result of this suite: there is no 'schema'");
  EXPECT_EQ(complaint(R"({"schema": 1})"), "x.json: 'schema' is a number, not a string");
  EXPECT_EQ(complaint(R"({"schema": "warpmeter/2"})"),
            "x.json: schema 'warpmeter/2'; this program reads 'warpmeter/1'");
  EXPECT_EQ(complaint(document_text(kRow, "")), "x.json: there is no 'summary'");
  EXPECT_EQ(complaint(document_text(kRow, R"(, "summary": [])")), "x.json: 'summary' is an array, not an object");
  EXPECT_EQ(complaint(document_text(kRow, R"(, "summary": {}, "sumary": {})")), "x.json: unknown field 'sumary'");
  EXPECT_EQ(complaint(document_text(kRow, R"(, "summary": {}, "type": "x")")), "x.json: unknown field 'type'");
}

TEST(Reader, RefusesEveryEnvelopeFieldOfAWrongTypeOrMissing) {
  const std::string good = document_text(kRow);
  for (const char* name : {"schema", "tool", "version", "argv", "started_at", "device", "libraries", "settings",
                           "row_keys", "rows", "summary"}) {
    const std::string key = std::string("\"") + name + "\": ";
    const std::size_t at = good.find(key);
    ASSERT_NE(at, std::string::npos) << name;
    std::string bad = good;
    complaint(bad.insert(at + 1, 1, 'x'));
    bad = good;
    complaint(bad.insert(at + key.size(), "3, \"other\": "));
  }
  EXPECT_NE(complaint(R"({"schema": "warpmeter/1", "tool": "t", "version": {}, "argv": ["t", 1]})").find("argv[...]"),
            std::string::npos);
}

TEST(Reader, RefusesDamagedRows) {
  EXPECT_EQ(complaint(document_text("1")), "x.json: row 1: is a number, not an object");
  EXPECT_EQ(complaint(document_text(std::string(kRow) + ", {}")), "x.json: row 2: the row has no 'status'");
  EXPECT_EQ(complaint(document_text(R"({"status": "fine", "reason": null, "rerun": ""})")),
            "x.json: row 1: 'fine' is no status");
  EXPECT_EQ(complaint(document_text(R"({"status": null, "reason": null, "rerun": ""})")),
            "x.json: row 1: 'status' is null, not a string");
  EXPECT_EQ(complaint(document_text(R"({"status": "ok", "reason": true, "rerun": ""})")),
            "x.json: row 1: 'reason' is a boolean, not a string");
  EXPECT_EQ(complaint(document_text(R"({"status": "ok", "reason": null, "rerun": {}})")),
            "x.json: row 1: 'rerun' is an object, not a string");
  EXPECT_EQ(complaint(document_text(R"({"status": "ok", "rerun": ""})")), "x.json: row 1: the row has no 'reason'");
  EXPECT_EQ(complaint(document_text(R"({"status": "ok", "reason": null})")), "x.json: row 1: the row has no 'rerun'");
}

TEST(Reader, KeepsControlCharactersOutOfItsComplaints) {
  const std::string what = complaint(R"({"schema": "warp\u001b[31m\nmeter"})");
  EXPECT_EQ(what.find('\x1b'), std::string::npos);
  EXPECT_LT(complaint("{\"schema\": \"" + std::string(100000, 'x') + "\"}").size(), 200U);
  EXPECT_LT(complaint("\"" + std::string(100000, 'x')).size(), 300U);
}

TEST(JsonLines, ReadHeaderRowsAndSummary) {
  const Document document = parse_document(header_line() + row_line() + row_line() + summary_line(), "x");
  EXPECT_EQ(document.tool, "t");
  EXPECT_EQ(document.rows.size(), 2U);
  EXPECT_FALSE(document.rows[0].figures.has("type"));
  EXPECT_EQ(document.summary.fields().size(), 1U);
  EXPECT_EQ(*document.summary.find("rows")->as_int(), 1);
}

TEST(JsonLines, KeepTheWholeRowsOfATruncatedFile) {
  const std::string text = header_line() + row_line() + row_line() + summary_line();
  for (std::size_t size = header_line().size() - 1; size <= text.size(); ++size) {
    const Document document = parse_document(text.substr(0, size), "x");
    std::size_t whole = 0;
    // A line is whole once its closing brace is there.
    if (size + 1 >= header_line().size() + row_line().size()) ++whole;
    if (size + 1 >= header_line().size() + 2 * row_line().size()) ++whole;
    ASSERT_EQ(document.rows.size(), whole) << size;
    EXPECT_EQ(document.summary.empty(), size + 1 < text.size());
  }
  // What a lost write leaves: the length without the data.
  EXPECT_EQ(parse_document(header_line() + row_line() + std::string(4096, '\0'), "x").rows.size(), 1U);
}

TEST(JsonLines, RefuseDamageThatIsNotATruncation) {
  EXPECT_NE(complaint(header_line() + "{\"type\": \"row\", \n" + row_line()).find("x.json: line 2, column "),
            std::string::npos);
  EXPECT_EQ(complaint(header_line() + "3\n"), "x.json: line 2: a number, not an object");
  EXPECT_EQ(complaint(header_line() + "{}\n"), "x.json: line 2: there is no 'type'");
  EXPECT_EQ(complaint(header_line() + "{\"type\": 1}\n"), "x.json: line 2: 'type' is a number, not a string");
  EXPECT_EQ(complaint(header_line() + row_line() + header_line()),
            "x.json: line 3: type 'header'; expected row or summary");
  EXPECT_EQ(complaint(header_line() + summary_line() + row_line()), "x.json: line 3: there is more after the summary");
  EXPECT_EQ(complaint(header_line() + with_type("row", R"({"status": "ok"})")),
            "x.json: line 2: the row has no 'reason'");
  EXPECT_EQ(complaint(with_type("header", R"({"schema": "warpmeter/9"})")),
            "x.json: line 1: schema 'warpmeter/9'; this program reads 'warpmeter/1'");
  complaint(row_line() + summary_line());
}

TEST(JsonLines, AllowBlankLinesAndCarriageReturns) {
  std::string text = header_line() + "\n" + row_line() + "\r\n" + summary_line() + "\n\n";
  EXPECT_EQ(parse_document(text, "x").rows.size(), 1U);
}

TEST(RowFromJson, RefusesWhatIsNoRow) {
  EXPECT_EQ(row_from_json(kRow, {"k"}).configuration.fields().size(), 1U);
  EXPECT_EQ(row_from_json(kRow, {}).figures.fields().size(), 2U);
  for (const char* text :
       {"", "3", "[]", "{}", "{\"status\": \"ok\"}", "{\"status\": \"ok\", \"reason\": null, \"rerun\": \"\""}) {
    EXPECT_THROW((void)row_from_json(text, {}), ReadError) << text;
  }
}

TEST(ReadDocument, ReadsFilesAndSaysWhyItCannot) {
  std::string folder = (std::filesystem::temp_directory_path() / "warpmeter-reader-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/x.json";
  std::ofstream(path) << document_text(kRow);
  EXPECT_EQ(read_document(path).rows.size(), 1U);
  const auto why = [](const std::string& name) -> std::string {
    try {
      (void)read_document(name);
    } catch (const ReadError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why(folder + "/none.json"), "cannot read '" + folder + "/none.json': No such file or directory");
  EXPECT_EQ(why(folder), "cannot read '" + folder + "': Is a directory");
  std::ofstream(path) << "{";
  EXPECT_EQ(why(path).find(path + ": line 1, column "), 0U) << why(path);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace warpmeter::reports
