#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reports/snapshot/data.hpp"
#include "reports/snapshot/detail/data_tree.hpp"
#include "reports/snapshot/reader.hpp"
#include "tests/reports/snapshot/sample.hpp"

namespace warpmeter::reports::snapshot {
namespace {

using namespace std::string_literals;
using detail::DataTree;
using detail::TreeError;
using detail::Word;
using Kind = Word::Kind;

/// The value that a pickle is, as text: what Python's repr() would say.
std::string repr(const DataTree& tree, Word word) {
  switch (word.kind()) {
    case Kind::special:
      return word == DataTree::none() ? "None" : word == DataTree::boolean(true) ? "True" : "False";
    case Kind::integer:
      return std::to_string(word.small());
    case Kind::big:
      return decimal(BigInteger{tree.big_of(word)});
    case Kind::real:
      return std::to_string(tree.real_of(word));
    case Kind::text:
      return "'" + std::string(tree.text_of(word)) + "'";
    default:
      break;
  }
  const bool dict = word.kind() == Kind::dict;
  std::string text = dict ? "{" : word.kind() == Kind::list ? "[" : "(";
  const auto items = tree.items(word);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i != 0) text += dict && i % 2 != 0 ? ": " : ", ";
    text += repr(tree, items[i]);
  }
  return text += dict ? "}" : word.kind() == Kind::list ? "]" : ")";
}

std::string value_of(std::string_view bytes) {
  DataTree tree(std::size_t{1} << 26);
  const Word root = detail::read_pickle(bytes, tree);
  return repr(tree, root);
}

std::string problem_of(std::string_view bytes) {
  try {
    return "no problem: " + value_of(bytes);
  } catch (const TreeError& e) {
    return e.what();
  }
}

TEST(Pickle, ValuesAsEveryProtocolWritesThem) {
  // {'a': [1, -2, 300, 70000, 2.5], 'b': (None, True, False), 'c': 'x\ny'} in protocol 0 and 4, from Python.
  EXPECT_EQ(
      value_of("(dp0\nVa\np1\n(lp2\nI1\naI-2\naI300\naI70000\naF2.5\nasVb\np3\n(NI01\nI00\ntp4\nsVc\np5\nVx\\u000ay\n"
               "p6\ns."),
      "{'a': [1, -2, 300, 70000, 2.500000], 'b': (None, True, False), 'c': 'x\ny'}");
  EXPECT_EQ(value_of("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
                     "a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00G@\x04\x00\x00\x00\x00\x00\x00"
                     "e\x8c\x01"
                     "b\x94N\x88\x89\x87\x94\x8c\x01"
                     "c\x94\x8c\x03x\ny\x94u."s),
            "{'a': [1, -2, 300, 70000, 2.500000], 'b': (None, True, False), 'c': 'x\ny'}");
}

TEST(Pickle, Integers) {
  EXPECT_EQ(value_of("K\xff."), "255");
  EXPECT_EQ(value_of("M\xff\xff."), "65535");
  EXPECT_EQ(value_of("J\xff\xff\xff\xff."), "-1");
  EXPECT_EQ(value_of("\x8a\x00."s), "0");
  EXPECT_EQ(value_of("\x8a\x01\x80."), "-128");
  EXPECT_EQ(value_of("\x8a\x02\xff\x00."s), "255");
  EXPECT_EQ(value_of("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), "9223372036854775807");
  EXPECT_EQ(value_of("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s), "-9223372036854775808");
  EXPECT_EQ(value_of("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s), "18446744073709551615");
  EXPECT_EQ(value_of("\x8b\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01."s), "4722366482869645213696");
  EXPECT_EQ(value_of("L-123456789012345678901234567890L\n."), "-123456789012345678901234567890");
  EXPECT_EQ(value_of("L" + std::string(4300, '9') + "L\n."), std::string(4300, '9'));
  EXPECT_EQ(problem_of("L" + std::string(4301, '9') + "L\n."), "byte 0: an integer of more than 4300 digits");
  EXPECT_EQ(problem_of("\x8b\xff\xff\xff\xff."), "byte 0: an integer of more than 4300 digits");
  EXPECT_EQ(problem_of("I12x\n."), "byte 0: not an integer");
  EXPECT_EQ(problem_of("I\n."), "byte 0: not an integer");
}

TEST(Pickle, TextsAndFloats) {
  EXPECT_EQ(value_of("X\x05\x00\x00\x00h\xc3\xa9ll."s), "'h\xc3\xa9ll'");
  EXPECT_EQ(value_of("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi."s), "'hi'");
  EXPECT_EQ(value_of("V\xe9\\u20ac\\U0001f600\\x\n."), "'\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\x'");
  EXPECT_EQ(value_of("X\x03\x00\x00\x00\xed\xa0\x80."s), "'\xed\xa0\x80'") << "a lone surrogate, as Python has them";
  EXPECT_EQ(problem_of("X\x01\x00\x00\x00\xff."s), "byte 0: a str that is not UTF-8");
  EXPECT_EQ(problem_of("V\\u12\n."), "byte 0: a str with a broken escape");
  EXPECT_EQ(problem_of("V\\U00110000\n."), "byte 0: a str with a broken escape");
  EXPECT_EQ(value_of("F-1e3\n."), "-1000.000000");
  EXPECT_EQ(value_of("Finf\n."), "inf");
  EXPECT_EQ(problem_of("Fx\n."), "byte 0: not a float");
}

TEST(Pickle, MemoByEveryOpcode) {
  EXPECT_EQ(value_of("(\x8c\x01x\x94h\x00t."s), "('x', 'x')");
  EXPECT_EQ(value_of("(\x8c\x01xq\x07h\x07t."), "('x', 'x')");
  EXPECT_EQ(value_of("(\x8c\x01xr\x00\x00\x00\x7fj\x00\x00\x00\x7ft."s), "('x', 'x')") << "numbers may have gaps";
  EXPECT_EQ(value_of("(Vx\np12\ng12\nt."), "('x', 'x')");
  EXPECT_EQ(problem_of("h\x05."), "byte 0: value 5 is used before it is remembered");
  EXPECT_EQ(problem_of("gx\n."), "byte 0: not a number of a remembered value");
  EXPECT_EQ(problem_of("\x94."), "byte 0: a value is missing on the stack");
}

TEST(Pickle, StackOperations) {
  EXPECT_EQ(value_of("K\x01K\x02\x30."), "1") << "POP";
  EXPECT_EQ(value_of("K\x01(K\x02K\x03\x31."), "1") << "POP_MARK";
  EXPECT_EQ(value_of("K\x01(\x30."), "1") << "POP takes a mark";
  EXPECT_EQ(value_of("K\x01\x32\x86."), "(1, 1)") << "DUP";
  EXPECT_EQ(value_of("(K\x01K\x02l."), "[1, 2]");
  EXPECT_EQ(value_of("(K\x01K\x02"
                     "d."),
            "{1: 2}");
  EXPECT_EQ(value_of(")K\x01\x85K\x02K\x03K\x04\x87\x87."), "((), (1), (2, 3, 4))");
}

TEST(Pickle, WhatIsWrongIsSaidWhere) {
  EXPECT_EQ(problem_of(""), "byte 0: the file ends before the pickle does");
  EXPECT_EQ(problem_of("K"), "byte 0: the file ends before the pickle does");
  EXPECT_EQ(problem_of("]K\x01"
                       "a"),
            "byte 4: the file ends before the pickle does");
  EXPECT_EQ(problem_of("X\xff\xff\xff\x7fx."), "byte 0: the file ends before the pickle does");
  EXPECT_EQ(problem_of("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."), "byte 0: the file ends before the pickle does");
  EXPECT_EQ(problem_of("\x95\xff\x00\x00\x00\x00\x00\x00\x00."s), "byte 0: the file ends before the pickle does");
  EXPECT_EQ(problem_of("\x80\x06."), "byte 0: pickle protocol 6; known are 0 to 5");
  EXPECT_EQ(problem_of("."), "byte 0: the pickle ends within a value");
  EXPECT_EQ(problem_of("K\x01(."), "byte 3: the pickle ends within a value");
  EXPECT_EQ(problem_of("e."), "byte 0: a mark is missing on the stack");
  EXPECT_EQ(problem_of("(e."), "byte 1: appends to what is no list");
  EXPECT_EQ(problem_of("K\x01(K\x02"
                       "e."),
            "byte 5: appends to what is no list");
  EXPECT_EQ(problem_of("](K\x02u."), "byte 4: sets items of what is no dict");
  EXPECT_EQ(problem_of("}(K\x02u."), "byte 4: a key without its value");
  EXPECT_EQ(problem_of("K\x01"
                       "a."),
            "byte 2: a value is missing on the stack");
  EXPECT_EQ(problem_of("\xff"), "byte 0: opcode 255 does not exist: not a pickle, or a damaged one");
  EXPECT_EQ(problem_of("(" + std::string(5000, '(')), "byte 4096: nested too deeply");
}

TEST(Pickle, WhatWouldRunCodeIsRefused) {
  EXPECT_EQ(problem_of("cos\nsystem\n(Vtouch /tmp/x\ntR."),
            "byte 0: opcode GLOBAL (os.system) would import and run code; a snapshot is data alone: refused");
  const std::vector<std::pair<std::string, std::string>> codes = {
      {"\x93", "STACK_GLOBAL"}, {"R", "REDUCE"},       {"b", "BUILD"},   {"i", "INST"},    {"o", "OBJ"},
      {"\x81", "NEWOBJ"},       {"\x92", "NEWOBJ_EX"}, {"\x82", "EXT1"}, {"\x83", "EXT2"}, {"\x84", "EXT4"},
      {"P", "PERSID"},          {"Q", "BINPERSID"}};
  for (const auto& [code, name] : codes) {
    EXPECT_EQ(problem_of("N" + code + "x\ny\n."),
              "byte 1: opcode " + name + " would import and run code; a snapshot is data alone: refused");
  }
  for (const std::string& code :
       {"S"s, "T"s, "U"s, "B"s, "C"s, "\x8e"s, "\x8f"s, "\x90"s, "\x91"s, "\x96"s, "\x97"s, "\x98"s}) {
    const std::string problem = problem_of(code + "'x'\n.");
    EXPECT_NE(problem.find("is no dict, list, tuple, str, int, float, bool or None"), std::string::npos) << problem;
  }
}

TEST(Pickle, EveryByteIsAnOpcodeOrRefused) {
  // None of the 256 is taken without having been thought of: what is not data says so.
  std::size_t refused = 0;
  for (int code = 0; code < 256; ++code) {
    const std::string problem = problem_of(std::string(1, static_cast<char>(code)));
    if (problem.find("refused") != std::string::npos || problem.find("does not exist") != std::string::npos) ++refused;
  }
  EXPECT_EQ(refused, 256U - 43U);
}

TEST(Pickle, MemoryIsBounded) {
  DataTree tree(1 << 20);
  std::string lists(3 << 20, ']');
  EXPECT_THROW((void)detail::read_pickle(lists, tree), TreeError);
  DataTree memo(1 << 20);
  std::string puts = "N";
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    puts += 'r';
    for (int b = 0; b < 4; ++b) puts += static_cast<char>((i * 40'000U) >> (8 * b) & 0xFF);
  }
  EXPECT_THROW((void)detail::read_pickle(puts, memo), TreeError);
  DataTree stack(std::size_t{1} << 30);
  EXPECT_THROW((void)detail::read_pickle("N" + std::string(17 << 20, '2'), stack), TreeError);
}

TEST(Data, BigIntegersAndBack) {
  for (const char* text : {"0", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
                           "-9223372036854775809", "18446744073709551616", "-18446744073709551616",
                           "340282366920938463463374607431768211455", "1000000000000000000000000000000"}) {
    Data value;
    ASSERT_TRUE(parse_decimal(text, value)) << text;
    const auto* small = value.as_integer();
    EXPECT_EQ(small != nullptr ? std::to_string(*small) : decimal(std::get<BigInteger>(value.value)), text);
  }
  Data value;
  for (const char* text : {"", "-", "+1", "1 ", "0x10", "1.0", "--1"}) EXPECT_FALSE(parse_decimal(text, value)) << text;
}

TEST(Data, EqualityIsOfTypesAndValues) {
  EXPECT_FALSE((Data{std::int64_t{1}} == Data{true}));
  EXPECT_FALSE((Data{std::int64_t{1}} == Data{1.0}));
  EXPECT_FALSE((Data{0.0} == Data{-0.0}));
  EXPECT_TRUE((Data{std::numeric_limits<double>::quiet_NaN()} == Data{std::numeric_limits<double>::quiet_NaN()}));
  const Data one{std::int64_t{1}}, two{std::int64_t{2}};
  EXPECT_FALSE((Data{std::vector<Data>{one}} == Data{DataTuple{{one}}}));
  EXPECT_TRUE((Data{DataDict{{one, two}, {two, one}}} == Data{DataDict{{two, one}, {one, two}}}));
  EXPECT_FALSE((Data{DataDict{{one, two}, {two, one}}} == Data{DataDict{{one, two}, {two, two}}}));
}

}  // namespace
}  // namespace warpmeter::reports::snapshot
