#include "tools/harness/grammar.hpp"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace warpmeter::harness {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::uint64_t>::max();
using Integers = std::vector<std::int64_t>;
using Sizes = std::vector<std::uint64_t>;
using Words = std::vector<std::string>;

/// The message of the GrammarError that `parse` throws, or a text that no test expects.
std::string problem_of(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const GrammarError& error) {
    return error.what();
  }
  return "(accepted)";
}
std::string integer_problem(std::string_view text, std::int64_t low = 1, std::int64_t high = kMax) {
  return problem_of([&] { (void)parse_integer(text, low, high); });
}
std::string list_problem(std::string_view text, std::int64_t low = 1, std::int64_t high = kMax) {
  return problem_of([&] { (void)parse_integer_list(text, low, high); });
}
std::string size_problem(std::string_view text) {
  return problem_of([&] { (void)parse_size(text); });
}
std::string size_list_problem(std::string_view text) {
  return problem_of([&] { (void)parse_size_list(text); });
}

TEST(GrammarInteger, ReadsDigitsWithinBounds) {
  EXPECT_EQ(parse_integer("4096", 1, 1 << 20), 4096);
  EXPECT_EQ(parse_integer("0", 0, 0), 0);
  EXPECT_EQ(parse_integer("007", 1, 7), 7);
  EXPECT_EQ(parse_integer("9223372036854775807", 1, kMax), kMax);
}

TEST(GrammarInteger, RefusesEverythingElseAndSaysWhy) {
  EXPECT_EQ(integer_problem(""), "empty");
  EXPECT_EQ(integer_problem("0"), "below 1");
  EXPECT_EQ(integer_problem("-5"), "negative");
  EXPECT_EQ(integer_problem("+5"), "a sign is not accepted");
  EXPECT_EQ(integer_problem("abc"), "not a whole number");
  EXPECT_EQ(integer_problem("12x"), "not a whole number");
  EXPECT_EQ(integer_problem("1e99"), "not a whole number");
  EXPECT_EQ(integer_problem("1.5"), "not a whole number");
  EXPECT_EQ(integer_problem("0x10"), "not a whole number");
  EXPECT_EQ(integer_problem(" 12"), "not a whole number");
  EXPECT_EQ(integer_problem("12 "), "not a whole number");
  EXPECT_EQ(integer_problem("1\n"), "not a whole number");
  EXPECT_EQ(integer_problem(std::string_view("1\0", 2)), "not a whole number");
  EXPECT_EQ(integer_problem("-"), "not a whole number");
  EXPECT_EQ(integer_problem("257", 1, 256), "above 256");
  EXPECT_EQ(integer_problem("9223372036854775808"), "above 9223372036854775807");
  EXPECT_EQ(integer_problem("99999999999999999999999999", 1, 8), "above 8");
}

TEST(GrammarList, ReadsListsRangesAndMixtures) {
  EXPECT_EQ(parse_integer_list("16", 1, kMax), (Integers{16}));
  EXPECT_EQ(parse_integer_list("16,32,64", 1, kMax), (Integers{16, 32, 64}));
  EXPECT_EQ(parse_integer_list("256:16384:x2", 1, kMax), (Integers{256, 512, 1024, 2048, 4096, 8192, 16384}));
  EXPECT_EQ(parse_integer_list("128:512:+128", 1, kMax), (Integers{128, 256, 384, 512}));
  EXPECT_EQ(parse_integer_list("1,256:1024:x2", 1, kMax), (Integers{1, 256, 512, 1024}));
  EXPECT_EQ(parse_integer_list("0:3:+1", 0, kMax), (Integers{0, 1, 2, 3}));
}

TEST(GrammarList, KeepsTheOrderWrittenAndDropsRepeats) {
  EXPECT_EQ(parse_integer_list("64,16,32,16", 1, kMax), (Integers{64, 16, 32}));
  EXPECT_EQ(parse_integer_list("4,1:8:x2", 1, kMax), (Integers{4, 1, 2, 8}));
}

TEST(GrammarList, ARangeThatMissesItsEndStopsBelowIt) {
  EXPECT_EQ(parse_integer_list("1:10:x2", 1, kMax), (Integers{1, 2, 4, 8}));
  EXPECT_EQ(parse_integer_list("1:10:+4", 1, kMax), (Integers{1, 5, 9}));
  EXPECT_EQ(parse_integer_list("7:7:x2", 1, kMax), (Integers{7}));
  EXPECT_EQ(parse_integer_list("7:7:+1", 1, kMax), (Integers{7}));
}

TEST(GrammarList, StaysRightAtTheLargestNumbers) {
  EXPECT_EQ(parse_integer_list("4611686018427387904:9223372036854775807:x2", 1, kMax),
            (Integers{std::int64_t{1} << 62}));
  EXPECT_EQ(parse_integer_list("9223372036854775806:9223372036854775807:+1", 1, kMax), (Integers{kMax - 1, kMax}));
  EXPECT_EQ(parse_integer_list("1:9223372036854775807:+9223372036854775807", 1, kMax), (Integers{1}));
  EXPECT_EQ(parse_integer_list("1:9:x99999999999999999999999", 1, kMax), (Integers{1}));
  EXPECT_EQ(parse_integer_list("1:9:x18446744073709551615", 1, kMax), (Integers{1}));
  EXPECT_EQ(parse_integer_list("1:9:+99999999999999999999999", 1, kMax), (Integers{1}));
}

TEST(GrammarList, RefusesRangesThatMeanNothing) {
  EXPECT_EQ(list_problem("16:8:x2"), "the range runs down");
  EXPECT_EQ(list_problem("16:8:+1"), "the range runs down");
  EXPECT_EQ(list_problem("1:8:x1"), "the factor must be at least 2");
  EXPECT_EQ(list_problem("1:8:x0"), "the factor must be at least 2");
  EXPECT_EQ(list_problem("1:8:+0"), "the step must be at least 1");
  EXPECT_EQ(list_problem("1:8:+00"), "the step must be at least 1");
  EXPECT_EQ(list_problem("0:8:x2", 0), "a range by a factor cannot start at 0");
  EXPECT_EQ(list_problem("1:8:x-2"), "the factor is not a whole number");
  EXPECT_EQ(list_problem("1:8:x2.5"), "the factor is not a whole number");
  EXPECT_EQ(list_problem("1:8:+a"), "the step is not a whole number");
  EXPECT_EQ(list_problem("1:8:++1"), "the step is not a whole number");
  const std::string form = "not a range: write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP";
  EXPECT_EQ(list_problem("1:8"), form);
  EXPECT_EQ(list_problem("1:8:2"), form);
  EXPECT_EQ(list_problem("1:8:x"), form);
  EXPECT_EQ(list_problem("1:8:"), form);
  EXPECT_EQ(list_problem("1:8:x2:x2"), form);
  EXPECT_EQ(list_problem(":8:x2"), "empty");
  EXPECT_EQ(list_problem("a:8:x2"), "not a whole number");
}

TEST(GrammarList, KeepsBothEndsOfARangeInBounds) {
  EXPECT_EQ(list_problem("0:8:+2"), "below 1");
  EXPECT_EQ(list_problem("1:512:x2", 1, 256), "above 256");
  EXPECT_EQ(list_problem("1:1e99:x2"), "not a whole number");
}

TEST(GrammarList, NamesTheItemAtFaultAmongSeveral) {
  EXPECT_EQ(list_problem(""), "empty");
  EXPECT_EQ(list_problem(","), "an item is empty");
  EXPECT_EQ(list_problem("1,,2"), "an item is empty");
  EXPECT_EQ(list_problem("1,2,"), "an item is empty");
  EXPECT_EQ(list_problem("16,12x,64"), "'12x': not a whole number");
  EXPECT_EQ(list_problem("16,16:8:x2"), "'16:8:x2': the range runs down");
  EXPECT_EQ(list_problem("16, 32"), "' 32': not a whole number");
}

TEST(GrammarList, StandsForAtMostAHundredThousandValues) {
  EXPECT_EQ(parse_integer_list("1:100000:+1", 1, kMax).size(), kMaxListValues);
  EXPECT_EQ(list_problem("1:100001:+1"), "stands for more than 100000 values");
  EXPECT_EQ(list_problem("1:9223372036854775807:+1"), "stands for more than 100000 values");
  EXPECT_EQ(list_problem("1:60000:+1,1:60000:+1"), "stands for more than 100000 values");
}

TEST(GrammarList, ReadsBackWhatItPrints) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    Integers values;
    for (std::size_t count = 1 + random() % 12; values.size() < count;) {
      const auto value = static_cast<std::int64_t>((random() >> 1) >> random() % 63);
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    EXPECT_EQ(parse_integer_list(format_list(values), 0, kMax), values);
  }
}

TEST(GrammarList, EqualsThePlainLoopForEveryShortRange) {
  for (std::int64_t first = 1; first <= 12; ++first) {
    for (std::int64_t last = first; last <= 40; ++last) {
      for (std::int64_t amount = 1; amount <= 7; ++amount) {
        Integers sum, product;
        for (std::int64_t v = first; v <= last; v += amount) sum.push_back(v);
        for (std::int64_t v = first; v <= last && amount > 1; v *= amount) product.push_back(v);
        const std::string ends = std::to_string(first) + ":" + std::to_string(last) + ":";
        EXPECT_EQ(parse_integer_list(ends + "+" + std::to_string(amount), 1, kMax), sum);
        if (amount > 1) {
          EXPECT_EQ(parse_integer_list(ends + "x" + std::to_string(amount), 1, kMax), product);
        }
      }
    }
  }
}

TEST(GrammarSize, ReadsBytesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("4096B"), 4096u);
  EXPECT_EQ(parse_size("64KiB"), 65536u);
  EXPECT_EQ(parse_size("1MiB"), 1048576u);
  EXPECT_EQ(parse_size("24GiB"), 25769803776u);
  EXPECT_EQ(parse_size("2TiB"), 2199023255552u);
  EXPECT_EQ(parse_size("3KB"), 3000u);
  EXPECT_EQ(parse_size("10MB"), 10000000u);
  EXPECT_EQ(parse_size("1GB"), 1000000000u);
  EXPECT_EQ(parse_size("1TB"), 1000000000000u);
  EXPECT_EQ(parse_size("18446744073709551615"), kMaxBytes);
}

TEST(GrammarSize, TakesFractionsThatAreWholeBytes) {
  EXPECT_EQ(parse_size("1.5GiB"), 1610612736u);
  EXPECT_EQ(parse_size("0.5KiB"), 512u);
  EXPECT_EQ(parse_size("0.001KB"), 1u);
  EXPECT_EQ(parse_size("2.0"), 2u);
  EXPECT_EQ(parse_size("1.0000000000000000000000000"), 1u);
  EXPECT_EQ(size_problem("1.5"), "not a whole number of bytes");
  EXPECT_EQ(size_problem("0.1KiB"), "not a whole number of bytes");
  EXPECT_EQ(size_problem("0.0000000000000000001TiB"), "not a whole number of bytes");
}

TEST(GrammarSize, RefusesEverythingElseAndSaysWhy) {
  EXPECT_EQ(size_problem(""), "empty");
  EXPECT_EQ(size_problem("0"), "below 1 byte");
  EXPECT_EQ(size_problem("0GiB"), "below 1 byte");
  EXPECT_EQ(size_problem("-1GiB"), "negative");
  EXPECT_EQ(size_problem("+1GiB"), "a sign is not accepted");
  EXPECT_EQ(size_problem("GiB"), "not a size");
  EXPECT_EQ(size_problem(".5GiB"), "not a size");
  EXPECT_EQ(size_problem("1."), "not a size");
  EXPECT_EQ(size_problem("1.2.3"), "not a size");
  EXPECT_EQ(size_problem("1e9"), "unknown unit 'e9'");
  EXPECT_EQ(size_problem("1 GiB"), "unknown unit ' GiB'");
  EXPECT_EQ(size_problem("1GiBx"), "unknown unit 'GiBx'");
  EXPECT_EQ(size_problem("64kib"), "unknown unit 'kib' (did you mean KiB?)");
  EXPECT_EQ(size_problem("1gb"), "unknown unit 'gb' (did you mean GB?)");
  EXPECT_EQ(size_problem("24G"), "unknown unit 'G' (did you mean GiB or GB?)");
  EXPECT_EQ(size_problem("24gi"), "unknown unit 'gi' (did you mean GiB or GB?)");
  EXPECT_EQ(size_problem("18446744073709551616"), "too large");
  EXPECT_EQ(size_problem("16777216TiB"), "too large");
  EXPECT_EQ(size_problem("99999999999999999999999TiB"), "too large");
}

TEST(GrammarSize, ReadsBackWhatItPrints) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t bytes = std::max<std::uint64_t>(1, (random() >> random() % 64) << random() % 48);
    EXPECT_EQ(parse_size(format_exact_size(bytes)), bytes);
  }
  EXPECT_EQ(format_exact_size(25769803776u), "24GiB");
  EXPECT_EQ(format_exact_size(1610612736u), "1536MiB");
  EXPECT_EQ(format_exact_size(4097), "4097");
}

TEST(GrammarSizeList, ReadsListsAndRanges) {
  EXPECT_EQ(parse_size_list("1MiB,10MiB"), (Sizes{1048576, 10485760}));
  EXPECT_EQ(parse_size_list("8:128:x4"), (Sizes{8, 32, 128}));
  EXPECT_EQ(parse_size_list("8:1GiB:x2").size(), 28u);
  EXPECT_EQ(parse_size_list("1MiB:2MiB:+512KiB"), (Sizes{1048576, 1572864, 2097152}));
  EXPECT_EQ(parse_size_list("9223372036854775808:18446744073709551615:x2"), (Sizes{std::uint64_t{1} << 63}));
  EXPECT_EQ(parse_size_list(format_size_list(Sizes{1024, 3, 1 << 20})), (Sizes{1024, 3, 1 << 20}));
}

TEST(GrammarSizeList, RefusesAsTheOthersDo) {
  EXPECT_EQ(size_list_problem("1GiB:1MiB:x2"), "the range runs down");
  EXPECT_EQ(size_list_problem("1:8:x1"), "the factor must be at least 2");
  EXPECT_EQ(size_list_problem("1:8:+0"), "the step must be at least 1");
  EXPECT_EQ(size_list_problem("1:8:+0KiB"), "below 1 byte");
  EXPECT_EQ(size_list_problem("1MiB,2G"), "'2G': unknown unit 'G' (did you mean GiB or GB?)");
  EXPECT_EQ(size_list_problem("1:1GiB:+1"), "stands for more than 100000 values");
}

TEST(GrammarNumber, ReadsPlainDecimals) {
  EXPECT_EQ(parse_number("2", 0, 10), 2.0);
  EXPECT_EQ(parse_number("0.5", 0, 10), 0.5);
  EXPECT_EQ(parse_number("0.1", 0, 10), 0.1);
  EXPECT_EQ(parse_number("0." + std::string(400, '0') + "1", 0, 10), 0.0);
}

TEST(GrammarNumber, RefusesEverythingElse) {
  const auto problem = [](std::string_view text) { return problem_of([&] { (void)parse_number(text, 0.5, 100); }); };
  EXPECT_EQ(problem(""), "empty");
  EXPECT_EQ(problem("0.4"), "below 0.5");
  EXPECT_EQ(problem("100.5"), "above 100");
  EXPECT_EQ(problem(std::string(400, '9')), "above 100");
  EXPECT_EQ(problem("-1"), "negative");
  EXPECT_EQ(problem("+1"), "a sign is not accepted");
  EXPECT_EQ(problem("-.5"), "not a decimal number");
  for (const char* text : {"1e99", "1e1", "inf", "nan", "0x1p3", ".5", "1.", "1,5", "1.2.3", " 1", "1s"}) {
    EXPECT_EQ(problem(text), "not a decimal number") << text;
  }
}

TEST(GrammarFraction, ReadsPercentagesAndFractionsToTheSameNumber) {
  EXPECT_EQ(parse_fraction("0.5%"), 0.005);
  EXPECT_EQ(parse_fraction("0.005"), 0.005);
  EXPECT_EQ(parse_fraction("100%"), 1.0);
  EXPECT_EQ(parse_fraction("0"), 0.0);
  for (int i = 0; i <= 1000; ++i) {
    const std::string tenths = std::to_string(i / 10) + "." + std::to_string(i % 10) + "%";
    EXPECT_EQ(parse_fraction(tenths), i / 1000.0) << tenths;
  }
}

TEST(GrammarFraction, RefusesEverythingElse) {
  const auto problem = [](std::string_view text) { return problem_of([&] { (void)parse_fraction(text); }); };
  EXPECT_EQ(problem(""), "empty");
  EXPECT_EQ(problem("5"), "above 1 (did you mean 5%?)");
  EXPECT_EQ(problem("500"), "above 1");
  EXPECT_EQ(problem("101%"), "above 100%");
  EXPECT_EQ(problem("-1%"), "negative");
  for (const char* text : {"%", "1%%", "abc", "1e-3", "1 %"}) {
    EXPECT_EQ(problem(text), "neither a fraction nor a percentage") << text;
  }
}

TEST(GrammarWords, ReadsKnownWordsInOrderWithoutRepeats) {
  constexpr std::array<std::string_view, 3> kImpls{"naive", "fused", "flash"};
  EXPECT_EQ(parse_words("flash,naive,flash", kImpls), (Words{"flash", "naive"}));
  EXPECT_EQ(parse_words("all", kImpls, true), (Words{"naive", "fused", "flash"}));
  EXPECT_EQ(parse_words("flash,all", kImpls, true), (Words{"flash", "naive", "fused"}));
  EXPECT_EQ(parse_word("fused", kImpls), "fused");
}

TEST(GrammarWords, RefusesUnknownWordsWithAGuess) {
  constexpr std::array<std::string_view, 3> kImpls{"naive", "fused", "flash"};
  const auto problem = [&](std::string_view text, bool allow_all = false) {
    return problem_of([&] { (void)parse_words(text, kImpls, allow_all); });
  };
  EXPECT_EQ(problem("flsh"), "unknown (did you mean flash?)");
  EXPECT_EQ(problem("Flash"), "unknown (did you mean flash?)");
  EXPECT_EQ(problem("cudnn"), "unknown");
  EXPECT_EQ(problem("naive,flsh"), "'flsh' is unknown (did you mean flash?)");
  EXPECT_EQ(problem("all"), "unknown");
  EXPECT_EQ(problem(""), "empty");
  EXPECT_EQ(problem("naive,"), "an item is empty");
  EXPECT_EQ(problem("naive fused", true), "unknown (did you mean naive?)");
  EXPECT_EQ(problem_of([&] { (void)parse_word("naive,fused", kImpls); }), "unknown (did you mean naive?)");
}

TEST(GrammarFormat, SizesForPeople) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(512), "512 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.0 KiB");
  EXPECT_EQ(format_size(1536), "1.5 KiB");
  EXPECT_EQ(format_size(25769803776u), "24.0 GiB");
  EXPECT_EQ(format_size((1u << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_size(kMaxBytes), "16.0 EiB");
}

TEST(GrammarNearest, FindsSlipsAndStaysSilentOtherwise) {
  constexpr std::array<std::string_view, 6> kOptions{"--seq-len",  "--steps",     "--heads",
                                                     "--kv-heads", "--no-causal", "--causal"};
  EXPECT_EQ(nearest_words("--seq-lne", kOptions), (Words{"--seq-len"}));
  EXPECT_EQ(nearest_words("-seq-len", kOptions), (Words{"--seq-len"}));
  EXPECT_EQ(nearest_words("--seq", kOptions), (Words{"--seq-len"}));
  EXPECT_EQ(nearest_words("--step", kOptions), (Words{"--steps"}));
  EXPECT_EQ(nearest_words("--head", kOptions), (Words{"--heads"}));
  EXPECT_EQ(nearest_words("--SEQ_LEN", kOptions), (Words{"--seq-len"}));
  EXPECT_EQ(nearest_words("--quiet", kOptions), (Words{}));
  EXPECT_EQ(nearest_words("--", kOptions), (Words{}));
  EXPECT_EQ(nearest_words("", kOptions), (Words{}));
  EXPECT_EQ(nearest_words(std::string(100000, 's'), kOptions), (Words{}));
  EXPECT_EQ(did_you_mean(Words{}), "");
  EXPECT_EQ(did_you_mean(Words{"a"}), "did you mean a?");
  EXPECT_EQ(did_you_mean(Words{"a", "b", "c"}), "did you mean a, b or c?");
}

}  // namespace
}  // namespace warpmeter::harness
