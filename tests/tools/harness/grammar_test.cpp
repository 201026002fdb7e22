#include "tools/harness/grammar.hpp"

#include <gtest/gtest.h>

namespace warpmeter::harness {
namespace {

TEST(Grammar, IntegerReadsDigits) { EXPECT_EQ(parse_integer("4096", 1, 1 << 20), 4096); }

}  // namespace
}  // namespace warpmeter::harness
