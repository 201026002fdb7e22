#include "tools/harness/option_table.hpp"

#include <array>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "tests/tools/harness/option_test_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {
namespace {

using Action = OptionTable::Action;
using Integers = std::vector<std::int64_t>;

OptionTable parsed(const std::vector<std::string>& arguments) {
  OptionTable table = make_fake_table();
  parse(table, arguments);
  return table;
}

/// The line that reading --seq-len as lengths gives.
std::string seq_len_error(const std::string& value) {
  return usage_error_of([&] { (void)parsed({"--seq-len", value}).integers("--seq-len", 1, 1 << 30); });
}

TEST(OptionTable, ReadsValuesWithSpaceAndWithEquals) {
  EXPECT_EQ(parsed({"--seq-len", "16,32"}).integers("--seq-len", 1, 100), (Integers{16, 32}));
  EXPECT_EQ(parsed({"--seq-len=16,32"}).integers("--seq-len", 1, 100), (Integers{16, 32}));
  EXPECT_EQ(parsed({"--label=a=b"}).text("--label"), "a=b");
  EXPECT_EQ(parsed({"--label", "a b, 'c' \"d\" [x]"}).text("--label"), "a b, 'c' \"d\" [x]");
  EXPECT_EQ(parsed({"--label", "[1,2]"}).text("--label"), "[1,2]");
  EXPECT_EQ(parsed({"--label={}"}).text("--label"), "{}");
}

TEST(OptionTable, ReadsEveryKindOfValue) {
  const OptionTable table =
      parsed({"--sizes", "1KiB:4KiB:x2", "--memory-limit", "1.5GiB", "--max-noise", "1%", "--max-time", "0.25"});
  EXPECT_EQ(table.sizes("--sizes"), (std::vector<std::uint64_t>{1024, 2048, 4096}));
  EXPECT_EQ(table.size("--memory-limit"), 1610612736u);
  EXPECT_EQ(table.fraction("--max-noise"), 0.01);
  EXPECT_EQ(table.number("--max-time", 0, 1), 0.25);
  EXPECT_EQ(table.integer("--warmup", 0, 100), 10);
  constexpr std::array<std::string_view, 2> kTimers{"device", "wall"};
  EXPECT_EQ(table.word("--timer", kTimers), "device");
}

TEST(OptionTable, RepeatableOptionsKeepAllValues) {
  const OptionTable table = parsed({"-o", "a.md", "--output=b.json", "--output", "c.csv", "-od.md"});
  EXPECT_EQ(table.texts("--output"), (std::vector<std::string>{"a.md", "b.json", "c.csv", "d.md"}));
}

TEST(OptionTable, BadNumbersNameOptionValueAndWhatIsAccepted) {
  const std::string accepted = "; accepted: whole numbers from 1, lists and ranges (256:16384:x2)";
  EXPECT_EQ(seq_len_error("0"), "--seq-len '0': below 1" + accepted);
  EXPECT_EQ(seq_len_error("-5"), "--seq-len '-5': negative" + accepted);
  EXPECT_EQ(seq_len_error("abc"), "--seq-len 'abc': not a whole number" + accepted);
  EXPECT_EQ(seq_len_error("12x"), "--seq-len '12x': not a whole number" + accepted);
  EXPECT_EQ(seq_len_error("16:8:x2"), "--seq-len '16:8:x2': the range runs down" + accepted);
  EXPECT_EQ(seq_len_error("1e99"), "--seq-len '1e99': not a whole number" + accepted);
  EXPECT_EQ(seq_len_error("16,,32"), "--seq-len '16,,32': an item is empty" + accepted);
  EXPECT_EQ(seq_len_error("16,x"), "--seq-len '16,x': 'x': not a whole number" + accepted);
}

TEST(OptionTable, AValueCannotBreakOrFloodTheMessage) {
  EXPECT_EQ(seq_len_error("1\n2\x1b[31m"),
            "--seq-len '1\\n2\\x1b[31m': not a whole number; accepted: whole numbers from 1, lists and ranges "
            "(256:16384:x2)");
  const std::string line = seq_len_error(std::string(100000, '9'));
  EXPECT_LT(line.size(), 250u);
  EXPECT_NE(line.find("999...': above"), std::string::npos);
}

TEST(OptionTable, UnknownWordsListTheKnownOnes) {
  constexpr std::array<std::string_view, 3> kImpls{"naive", "fused", "flash"};
  EXPECT_EQ(
      usage_error_of([&] {
        (void)parsed({"--impl", "flsh"}).words("--impl", kImpls, true);
      }),
      "--impl 'flsh': unknown (did you mean flash?); accepted: naive, fused, flash, all, one or several with commas "
      "between");
  EXPECT_EQ(usage_error_of([&] {
              (void)parsed({"--impl", "cudnn"}).word("--impl", kImpls);
            }),
            "--impl 'cudnn': unknown; accepted: naive, fused, flash");
}

TEST(OptionTable, UnknownOptionsGetTheNearestNames) {
  EXPECT_EQ(parse_error({"--seq-lne", "5"}), "--seq-lne: unknown option; did you mean --seq-len?");
  EXPECT_EQ(parse_error({"--seq-lne=5"}), "--seq-lne: unknown option; did you mean --seq-len?");
  EXPECT_EQ(parse_error({"-seq-len", "5"}), "-seq-len: unknown option; did you mean --seq-len?");
  EXPECT_EQ(parse_error({"--no-causl"}), "--no-causl: unknown option; did you mean --no-causal?");
  EXPECT_EQ(parse_error({"--frobnicate"}), "--frobnicate: unknown option; --help lists them");
  EXPECT_EQ(parse_error({"-x"}), "-x: unknown option; --help lists them");
  EXPECT_EQ(parse_error({"--seq-lne\n"}), "--seq-lne\\n: unknown option; did you mean --seq-len?");
  EXPECT_EQ(parse_error({"--isolated-child"}), "--isolated-child: unknown option; did you mean --isolate?");
}

TEST(OptionTable, RefusesWhatBelongsToNoOption) {
  EXPECT_EQ(parse_error({"junk"}), "'junk': unexpected; options are written --name value");
  EXPECT_EQ(parse_error({"--seq-len", "16", "32"}), "'32': unexpected; options are written --name value");
  EXPECT_EQ(parse_error({"--isolate", "yes"}), "'yes': unexpected; options are written --name value");
  EXPECT_EQ(parse_error({""}), "'': unexpected; options are written --name value");
  EXPECT_EQ(parse_error({"-5"}), "-5: unknown option; --help lists them");
}

TEST(OptionTable, RefusesMissingValues) {
  const std::string line = "--seq-len: needs a value; accepted: whole numbers from 1, lists and ranges (256:16384:x2)";
  EXPECT_EQ(parse_error({"--seq-len"}), line);
  EXPECT_EQ(parse_error({"--seq-len", "--isolate"}), line);
  EXPECT_EQ(parse_error({"--seq-len", ""}), line);
  EXPECT_EQ(parse_error({"--seq-len="}), "--seq-len: nothing stands behind the =");
  EXPECT_EQ(parse_error({"--seq-len=", "5"}), "--seq-len: nothing stands behind the =");
  EXPECT_EQ(parse_error({"-o"}),
            "--output: needs a value; accepted: file names that end in .md, .json, .jsonl or .csv");
}

TEST(OptionTable, RefusesAnOptionGivenTwice) {
  EXPECT_EQ(parse_error({"--seq-len", "16", "--seq-len=32"}),
            "--seq-len '16', '32': given more than once; accepted: once; whole numbers from 1, lists and ranges "
            "(256:16384:x2)");
  EXPECT_EQ(parse_error({"--isolate", "--isolate"}), "(accepted)");
  EXPECT_EQ(parse_error({"--isolate", "--isolate=false"}),
            "--isolate: given as true and as false; accepted: --isolate");
}

TEST(OptionTable, FlagPairs) {
  EXPECT_TRUE(parsed({}).flag("--check"));
  EXPECT_TRUE(parsed({"--check"}).flag("--check"));
  EXPECT_FALSE(parsed({"--no-check"}).flag("--check"));
  EXPECT_FALSE(parsed({"--check=false"}).flag("--check"));
  EXPECT_FALSE(parsed({}).flag("--isolate"));
  EXPECT_TRUE(parsed({"--isolate"}).flag("--isolate"));
  EXPECT_EQ(parse_error({"--check", "--no-check"}),
            "--check and --no-check: contradict each other; accepted: one of them");
  EXPECT_EQ(parse_error({"--isolate=maybe"}), "--isolate 'maybe': takes no value; accepted: --isolate");
  EXPECT_EQ(parse_error({"--no-check=false"}), "--no-check 'false': takes no value; accepted: --check or --no-check");
}

TEST(OptionTable, SweptFlags) {
  using Bools = std::vector<bool>;
  EXPECT_EQ(parsed({}).flags("--causal"), (Bools{true}));
  EXPECT_EQ(parsed({"--causal"}).flags("--causal"), (Bools{true}));
  EXPECT_EQ(parsed({"--causal", "--isolate"}).flags("--causal"), (Bools{true}));
  EXPECT_EQ(parsed({"--no-causal"}).flags("--causal"), (Bools{false}));
  EXPECT_EQ(parsed({"--causal=both"}).flags("--causal"), (Bools{true, false}));
  EXPECT_EQ(parsed({"--causal", "both"}).flags("--causal"), (Bools{true, false}));
  EXPECT_EQ(parsed({"--causal=false,true"}).flags("--causal"), (Bools{false, true}));
  EXPECT_EQ(parsed({"--causal=false"}).flags("--causal"), (Bools{false}));
  constexpr std::array<std::string_view, 2> kTruths{"true", "false"};
  EXPECT_EQ(parsed({"--causal=both"}).words("--causal", kTruths), (std::vector<std::string>{"true", "false"}));
  EXPECT_EQ(parse_error({"--causal", "--no-causal"}),
            "--causal and --no-causal: contradict each other; accepted: one of them");
  EXPECT_EQ(parse_error({"--causal=maybe"}),
            "--causal 'maybe': not a truth value; accepted: --causal, --no-causal or --causal=both");
  EXPECT_EQ(parse_error({"--causal=true,true"}),
            "--causal 'true,true': not a truth value; accepted: --causal, --no-causal or --causal=both");
}

TEST(OptionTable, PresetsGiveWayToWhatIsGiven) {
  OptionTable table = parsed({"--preset", "notes", "--seq-len", "64"});
  EXPECT_EQ(table.text("--impl"), "all");
  EXPECT_EQ(table.source("--impl"), OptionSource::preset);
  EXPECT_FALSE(table.given("--impl"));
  EXPECT_EQ(table.text("--seq-len"), "64");
  EXPECT_EQ(table.source("--seq-len"), OptionSource::command_line);
  EXPECT_TRUE(table.given("--seq-len"));
  EXPECT_EQ(table.source("--kv-len"), OptionSource::fallback);
  EXPECT_FALSE(table.has("--kv-len"));
  EXPECT_EQ(table.preset(), "notes");
}

TEST(OptionTable, UnknownPresetsListTheKnownOnes) {
  EXPECT_EQ(parse_error({"--preset", "nots"}),
            "--preset 'nots': unknown preset (did you mean notes?); accepted: notes, quick, fixed");
  EXPECT_EQ(parse_error({"--preset", "huge"}), "--preset 'huge': unknown preset; accepted: notes, quick, fixed");
}

TEST(OptionTable, ABadValueOfAPresetSaysWhereItIsFrom) {
  OptionTable table = make_fake_table();
  table.add_presets({{"broken", "for this test", {{"--seq-len", "12x"}}}});
  parse(table, {"--preset", "broken"});
  EXPECT_EQ(
      usage_error_of([&] { (void)table.integers("--seq-len", 1, 100); }),
      "--seq-len '12x': not a whole number (from preset broken); accepted: whole numbers from 1, lists and ranges "
      "(256:16384:x2)");
}

TEST(OptionTable, ParsesAgainOnceTheDeviceHasChosenTheDefaultPreset) {
  OptionTable table = make_fake_table();
  parse(table, {"--seq-len", "64"});
  EXPECT_EQ(table.text("--impl"), "naive");
  EXPECT_EQ(table.preset(), "");
  table.set_default_preset("quick");
  parse(table, {"--seq-len", "64"});
  EXPECT_EQ(table.text("--impl"), "naive,flash");
  EXPECT_EQ(table.text("--seq-len"), "64");
  EXPECT_EQ(table.preset(), "quick");
  parse(table, {"--preset", "notes"});
  EXPECT_EQ(table.text("--impl"), "all");
  EXPECT_EQ(table.text("--seq-len"), "256,1024");
  EXPECT_EQ(table.text("--warmup"), "10");
}

TEST(OptionTable, AFailedParseLeavesTheTableAsItWas) {
  OptionTable table = parsed({"--seq-len", "64"});
  EXPECT_NE(usage_error_of([&] { parse(table, {"--seq-len", "32", "--nonsense"}); }), "(accepted)");
  EXPECT_EQ(table.text("--seq-len"), "64");
}

TEST(OptionTable, Actions) {
  EXPECT_EQ(parsed({}).action(), Action::run);
  EXPECT_EQ(parsed({"--dry-run"}).action(), Action::run);
  EXPECT_EQ(parsed({"--help"}).action(), Action::help);
  EXPECT_EQ(parsed({"--version"}).action(), Action::version);
  EXPECT_EQ(parsed({"--list"}).action(), Action::list);
  EXPECT_EQ(parsed({"--doctor", "--format", "json"}).action(), Action::doctor);
  EXPECT_EQ(parsed({"--print-config"}).action(), Action::print_config);
  EXPECT_EQ(parsed({"--help-markdown"}).action(), Action::help_markdown);
  EXPECT_EQ(parsed({"--nonsense", "--seq-len", "--help", "junk"}).action(), Action::help);
  EXPECT_EQ(parsed({"--version", "--nonsense"}).action(), Action::version);
  EXPECT_NE(parse_error({"--list", "--nonsense"}), "(accepted)");
}

TEST(OptionTable, AnExclusionMayHoldWhileAnotherOptionSaysSo) {
  const auto parse = [](const std::vector<const char*>& arguments) {
    OptionTable table("tool", "test");
    OptionSpec mode, batch, tokens;
    mode.name = "--mode";
    batch.name = "--batch";
    tokens.name = "--tokens";
    for (OptionSpec* spec : {&mode, &batch, &tokens}) spec->metavar = "TEXT";
    mode.default_text = "train";
    batch.default_text = "8";
    tokens.excludes = {"--batch"};
    tokens.excludes_while = {"--mode", "train"};
    for (const OptionSpec& spec : {mode, batch, tokens}) table.add(spec);
    std::vector<const char*> all{"tool"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    table.parse(static_cast<int>(all.size()), all.data());
    return table.text("--batch") + "/" + table.text("--tokens");
  };
  EXPECT_THROW((void)parse({"--tokens", "4", "--batch", "2"}), UsageError);
  EXPECT_EQ(parse({"--tokens", "4", "--batch", "2", "--mode", "decode"}), "2/4");
}

TEST(OptionTable, ExclusiveOptionsNameEachOther) {
  EXPECT_EQ(parse_error({"--steps", "5", "--max-time", "1"}),
            "--steps 5 and --max-time 1: contradict each other; accepted: one of them");
  EXPECT_EQ(parse_error({"--max-noise", "1%", "--steps=5"}),
            "--steps 5 and --max-noise 1%: contradict each other; accepted: one of them");
  EXPECT_EQ(parse_error({"--wide", "--columns", "a,b"}),
            "--columns a,b and --wide: contradict each other; accepted: one of them");
}

TEST(OptionTable, OfExclusiveOptionsTheStrongerSourceStays) {
  OptionTable table = parsed({"--preset", "quick", "--steps", "5"});
  EXPECT_EQ(table.text("--steps"), "5");
  EXPECT_EQ(table.text("--max-time"), "2");
  EXPECT_EQ(table.source("--max-time"), OptionSource::fallback);
  table = parsed({"--preset", "fixed", "--max-time", "1"});
  EXPECT_FALSE(table.has("--steps"));
  EXPECT_EQ(table.text("--max-time"), "1");
}

TEST(OptionTable, AToolsMistakesAreChecked) {
  OptionTable table = make_fake_table();
  EXPECT_THROW((void)table.text("--nothing"), CheckError);
  EXPECT_THROW(table.add({.name = "--seq-len"}), CheckError);
  EXPECT_THROW(table.add({.name = "seq"}), CheckError);
  EXPECT_THROW(table.add({.name = "--flag", .default_text = "perhaps"}), CheckError);
  EXPECT_THROW(table.set_default_preset("nothing"), CheckError);
  EXPECT_THROW((void)table.rerun_arguments({{"--warmup", "3"}}), CheckError);
}

TEST(OptionTable, ErrorsAcrossOptionsNameTheOption) {
  const OptionTable table = parsed({"--seq-len", "64"});
  EXPECT_STREQ(table.error("--seq-len", "does not divide --kv-len").what(),
               "--seq-len '64': does not divide --kv-len; accepted: whole numbers from 1, lists and ranges "
               "(256:16384:x2)");
}

}  // namespace
}  // namespace warpmeter::harness
