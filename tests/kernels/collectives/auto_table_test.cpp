#include "kernels/collectives/auto_table.hpp"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace warpmeter::collectives {
namespace {

using Choice = AutoTable::Choice;

TEST(AutoTable, PicksBySizeAndKind) {
  const AutoTable table = AutoTable::parse(
      "# measured on two GPUs\n"
      "all_reduce p2p 1000 nccl 5000 p2p  # and back\n"
      "\n"
      "all_gather nccl\n");
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 0), Choice::p2p);
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 1000), Choice::p2p);
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 1001), Choice::nccl);
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 5001), Choice::p2p);
  EXPECT_EQ(table.choice(CollectiveKind::all_gather, 1), Choice::nccl);
  EXPECT_EQ(table.choice(CollectiveKind::broadcast, 1), Choice::p2p) << "a kind without a line";
}

TEST(AutoTable, TextReadsBack) {
  const AutoTable table = AutoTable::parse("all_reduce p2p 1000 nccl\nbarrier nccl\n");
  EXPECT_EQ(table.text(),
            "all_reduce p2p 1000 nccl\nbroadcast p2p\nall_gather p2p\nreduce_scatter p2p\nbarrier nccl\n");
  EXPECT_EQ(AutoTable::parse(table.text()).text(), table.text());
}

TEST(AutoTable, ChangesOverBetweenMeasuredSizes) {
  AutoTable table = AutoTable::always(Choice::p2p);
  table.set(CollectiveKind::all_reduce,
            {{1024, Choice::p2p}, {16384, Choice::p2p}, {262144, Choice::nccl}, {4194304, Choice::nccl}});
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 65536), Choice::p2p) << "sqrt(16384 x 262144)";
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 65537), Choice::nccl);
  EXPECT_EQ(table.choice(CollectiveKind::all_reduce, 1LL << 40), Choice::nccl);
  EXPECT_EQ(table.choice(CollectiveKind::all_gather, 1LL << 40), Choice::p2p);
}

TEST(AutoTable, RefusesWhatItDoesNotUnderstand) {
  for (const char* text :
       {"allreduce p2p", "all_reduce", "all_reduce gloo", "all_reduce p2p 100", "all_reduce p2p x nccl",
        "all_reduce p2p 100 nccl 100 p2p", "all_reduce p2p -5 nccl", "all_reduce p2p 1k nccl"}) {
    try {
      (void)AutoTable::parse(text);
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace warpmeter::collectives
