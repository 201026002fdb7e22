#include "reports/detail/cell.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace warpmeter::reports::detail {
namespace {

struct Case {
  const char* name;
  Value value;
  const char* cell;
};

TEST(FormatCell, RoundsByTheUnitInTheName) {
  const Case cases[] = {
      // The notes' own figures.
      {"fwd_ms", 0.98, "0.98"},
      {"fwd_ms", 53.0, "53"},
      {"fwd_ms", 53, "53"},
      {"bwd_ms", 12.55, "12.55"},
      {"bwd_ms", 143.74, "143.7"},
      {"mean_ms", 20764.952, "20765"},
      {"mean_ms", 5398.399, "5398"},
      {"fwd_peak_mem_mib", 1598.91, "1598.91"},
      {"fwd_peak_mem_mib", 12397.64, "12397.6"},
      {"fwd_peak_mem_mib", 46.48, "46.48"},
      {"fwd_peak_mem_mib", 24.2, "24.2"},
      {"fwd_peak_mem_mib", 24.204, "24.2"},
      // Rounding that carries into another digit.
      {"fwd_ms", 9.99996, "10"},
      {"fwd_ms", 999.96, "1000"},
      {"fwd_ms", 0.99994, "0.9999"},
      {"fwd_peak_mem_mib", 9999.9996, "10000"},
      {"fwd_peak_mem_mib", 99.996, "100"},
      // Small and large.
      {"fwd_ms", 0.0001234, "0.0001234"},
      {"fwd_ms", 0.00001234, "1.234e-05"},
      {"fwd_ms", 0.0, "0"},
      {"fwd_ms", -0.0, "0"},
      {"fwd_ms", 1234567890.0, "1.235e+09"},
      {"fwd_peak_mem_mib", 0.00048828125, "0.00049"},
      {"fwd_peak_mem_mib", 0.0, "0"},
      {"fwd_peak_mem_mib", 1234567.8, "1234568"},
      {"fwd_peak_mem_mib", std::numeric_limits<double>::max(), "1.798e+308"},
      {"fwd_peak_mem_mib", 1e-300, "1e-300"},
      // Shares.
      {"fwd_bound_share", 0.87341, "87.3%"},
      {"fwd_bound_share", 1.0, "100%"},
      {"fwd_bound_share", 1.0042, "100.4%"},
      {"fwd_noise", 0.0042, "0.42%"},
      {"fwd_noise", 0.099951, "10%"},
      {"fwd_noise", 0.00001, "0.001%"},
      {"fwd_noise", 0, "0%"},
      // Rates, work, errors.
      {"fwd_tflops", 0.52345, "0.5234"},
      {"fwd_gbps", 4123.4, "4123"},
      {"algo_GiBps", 71.908, "71.91"},
      {"fwd_flops", 4294967296000.0, "4.295e+12"},
      {"fwd_flops", std::int64_t{4294967296000}, "4.295e+12"},
      {"max_error", 1.3e-7, "1.3e-07"},
      // Whole numbers stay whole, however they are held.
      {"seq_len", 16384, "16384"},
      {"seq_len", 16384.0, "16384"},
      {"fwd_bytes", 1073741824.0, "1073741824"},
      {"fwd_n", 123456, "123456"},
      {"seed", std::numeric_limits<std::int64_t>::min(), "-9223372036854775808"},
      {"seed", 1e18, "1000000000000000000"},
      {"anything", 0.123456, "0.1235"},
      {"anything", 1e300, "1e+300"},
      {"anything", std::numeric_limits<double>::denorm_min(), "4.941e-324"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(format_cell(c.name, c.value), c.cell) << c.name;
  }
}

TEST(FormatCell, LeavesWhatIsNotThereEmpty) {
  EXPECT_EQ(format_cell("fwd_ms", Value()), "");
  EXPECT_EQ(format_cell("fwd_ms", std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_EQ(format_cell("fwd_ms", -std::numeric_limits<double>::infinity()), "");
  EXPECT_EQ(format_cell("impl", ""), "");
}

TEST(FormatCell, KeepsTextInOneLine) {
  EXPECT_EQ(format_cell("reason", "a\nb\r\nc\td\x1b[0m\x7f"), "a b c d\xEF\xBF\xBD[0m\xEF\xBF\xBD");
  EXPECT_EQ(format_cell("reason", "\xC2\x85 \xC2\xA0"), "\xEF\xBF\xBD \xC2\xA0");  // a C1 control; a space that is none
  EXPECT_EQ(format_cell("reason", "\xFF"), "\xEF\xBF\xBD");
  EXPECT_EQ(format_cell("causal", true), "true");
  EXPECT_EQ(format_cell("sizes", Value::Array{1, 2.5, "x"}), "[1, 2.5, \"x\"]");
}

TEST(EscapeMarkdown, TakesTheMeaningFromMarkup) {
  EXPECT_EQ(escape_markdown("a|b\\c*d*<e>`f`[g]"), "a\\|b\\\\c\\*d\\*\\<e>\\`f\\`\\[g]");
  EXPECT_EQ(escape_markdown("fwd_peak_mem_mib"), "fwd_peak_mem_mib");
}

TEST(CodeSpan, HoldsBackticks) {
  EXPECT_EQ(code_span("a b"), "`a b`");
  EXPECT_EQ(code_span("a`b"), "``a`b``");
  EXPECT_EQ(code_span("`a``"), "``` `a`` ```");
}

}  // namespace
}  // namespace warpmeter::reports::detail
