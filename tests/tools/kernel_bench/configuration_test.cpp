#include "tools/kernel_bench/configuration.hpp"

#include <gtest/gtest.h>

#include "kernels/primer/registry.hpp"

namespace warpmeter::kernel_bench {
namespace {

std::vector<Configuration> expanded(std::vector<const char*> arguments, std::vector<DType> dtypes = {DType::fp32}) {
  harness::OptionTable table("kernel_bench", "test");
  harness::add_shared_options(table);
  add_options(table);
  arguments.insert(arguments.begin(), "kernel_bench");
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  harness::Settings settings;
  settings.dtypes = std::move(dtypes);
  return expand(table, settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Configuration, EveryKernelAtItsOwnSizesByDefault) {
  const auto all = expanded({});
  ASSERT_EQ(all.size(), primer::kernels().size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].kernel, &primer::kernels()[i]);
    for (const primer::Size size : all[i].kernel->sizes) {
      EXPECT_EQ(all[i].problem.size(size), all[i].kernel->bench.size(size)) << all[i].kernel->name;
    }
  }
}

TEST(Configuration, KernelsThenTypesThenSizes) {
  const auto all =
      expanded({"--kernel", "add,row_sum", "--rows", "3,5", "--cols", "8:32:x2"}, {DType::fp32, DType::bf16});
  ASSERT_EQ(all.size(), 2u * 2u * 2u * 3u);
  EXPECT_EQ(all[0].kernel->name, "add");
  EXPECT_EQ(all[1].problem.cols, 16);
  EXPECT_EQ(all[3].problem.rows, 5);
  EXPECT_EQ(all[6].problem.dtype, DType::bf16);
  EXPECT_EQ(all[12].kernel->name, "row_sum");
}

TEST(Configuration, SizesThatAKernelDoesNotHaveMakeNoRows) {
  const auto all = expanded({"--kernel", "add,conv2d", "--kernel-size", "3,5,7", "--batch", "1,2"});
  EXPECT_EQ(all.size(), 1u + 6u);
}

TEST(Configuration, NotesAreThePuzzlesOwnSizes) {
  const auto all = expanded({"--preset", "notes"});
  ASSERT_EQ(all.size(), primer::kernels().size());
  for (const Configuration& c : all) {
    if (c.kernel->name == "row_sum") {
      EXPECT_EQ(c.problem.rows, 4);
      EXPECT_EQ(c.problem.cols, 200);
    } else if (c.kernel->name == "conv2d") {
      EXPECT_EQ(c.problem.batch, 4);
      EXPECT_EQ(c.problem.rows, 8);
      EXPECT_EQ(c.problem.kernel_size, 4);
    } else if (c.kernel->name == "int4_matmul") {
      EXPECT_EQ(c.problem.inner, 64);
      EXPECT_EQ(c.problem.group_size, 8);
    }
  }
  EXPECT_EQ(expanded({"--preset", "notes", "--kernel", "add", "--cols", "7"})[0].problem.cols, 7);
}

TEST(Configuration, WhatIsNoProblemIsRefusedByName) {
  EXPECT_NE(usage_error({"--rows", "0"}).find("--rows"), std::string::npos);
  EXPECT_NE(usage_error({"--cols", "-4"}).find("--cols"), std::string::npos);
  EXPECT_NE(usage_error({"--kernel", "ad"}).find("add"), std::string::npos);
  EXPECT_NE(usage_error({"--kernel", "add", "--inner", "5"}).find("--inner"), std::string::npos);
  EXPECT_NE(usage_error({"--sizes", "mine"}).find("bench, notes"), std::string::npos);
  const std::string too_large = usage_error({"--kernel", "add", "--rows", "1000000000000", "--cols", "1000000000"});
  EXPECT_NE(too_large.find("more elements than can be counted"), std::string::npos) << too_large;
  EXPECT_NE(usage_error({"--kernel", "conv2d", "--kernel-size", "5000"}).find("above 4096"), std::string::npos);
  // A preset may give a size that the kernels chosen do not have.
  EXPECT_EQ(usage_error({"--preset", "quick", "--kernel", "add"}), "");
}

}  // namespace
}  // namespace warpmeter::kernel_bench
