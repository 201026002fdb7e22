#include "tools/kernel_bench/configuration.hpp"

#include <algorithm>
#include <array>

#include "kernels/primer/registry.hpp"
#include "tools/harness/row_option.hpp"

namespace warpmeter::kernel_bench {

namespace {

using harness::OptionSpec;
using harness::OptionTable;
using harness::row_option;
using harness::UsageError;
using primer::Kernel;
using primer::Problem;
using primer::Size;

constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;
constexpr std::array<Size, primer::kSizes> kSizes = {Size::batch, Size::rows,        Size::cols,
                                                     Size::inner, Size::kernel_size, Size::group_size};
constexpr std::array<std::string_view, 2> kSizeSets = {"bench", "notes"};

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : primer::kernels()) names.push_back(kernel.name);
  return names;
}

}  // namespace

std::string option_of(Size size) {
  std::string option = "--" + std::string(primer::name(size));
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

void add_options(OptionTable& table) {
  std::string names;
  for (const std::string_view name : kernel_names()) names += std::string(name) + ",";
  OptionSpec kernel = row_option("--kernel", "NAMES", "", names + " or all",
                                 "Kernels to measure; --list prints what each computes.", "--kernel add,row_sum");
  kernel.default_text = "all";
  table.add(kernel);
  const auto add_size = [&](Size size, const std::string& help, const std::string& example) {
    OptionSpec spec =
        row_option(option_of(size), "LIST", "",
                   "whole numbers from 1: a list or range such as 256,1024 or 256:16384:x2", help, example);
    spec.default_note = "as --sizes has it";
    table.add(spec);
  };
  add_size(Size::rows, "Rows of the result.", "--rows 4096");
  add_size(Size::cols, "Columns of the result.", "--cols 1024:16384:x2");
  add_size(Size::batch, "Independent problems (conv2d, batched_matmul).", "--batch 1,8");
  add_size(Size::inner, "What a matrix product sums over (batched_matmul, int4_matmul).", "--inner 4096");
  add_size(Size::kernel_size, "Height and width of the convolution's kernel (conv2d).", "--kernel-size 3,5,7");
  add_size(Size::group_size, "Weights that share a scale and an offset (int4_matmul).", "--group-size 128");
  OptionSpec sizes = row_option(
      "--sizes", "NAME", "", "bench, notes",
      "Where a kernel's sizes come from that no option gives. bench: 4096 for rows, columns and inner, 3 for "
      "kernels, 128 for groups. notes: the sizes of the notes' puzzles.",
      "--sizes notes");
  sizes.default_text = "bench";
  table.add(sizes);
  table.add_presets({
      {"widths",
       "every kernel over widths from 1024 to 16384, 4096 rows, fp32 and bf16",
       {{"--kernel", "all"}, {"--dtype", "fp32,bf16"}, {"--rows", "4096"}, {"--cols", "1024:16384:x2"}}},
      {"notes",
       "the notes' puzzles at their own small sizes, checked",
       {{"--kernel", "all"}, {"--dtype", "fp32"}, {"--sizes", "notes"}, {"--max-time", "0.2"}}},
      {"quick",
       "every kernel at two widths in about half a minute on two CPU cores",
       {{"--kernel", "all"},
        {"--dtype", "fp32"},
        {"--rows", "1024"},
        {"--cols", "1024,8192"},
        {"--inner", "512"},
        {"--warmup", "3"},
        {"--max-time", "0.2"}}},
  });
  table.add_examples({
      "kernel_bench",
      "kernel_bench --kernel all --rows 4096 --cols 1024:16384:x2 --dtype fp32,bf16",
      "kernel_bench --preset notes",
      "kernel_bench --kernel softmax_online,softmax_one_read --cols 256:65536:x2 -o softmax.json",
      "kernel_bench --kernel int4_matmul --rows 16384 --inner 16384 --cols 1,4096 --dtype bf16",
  });
}

std::vector<Configuration> expand(const OptionTable& table, const harness::Settings& settings) {
  const std::vector<std::string> chosen = table.words("--kernel", kernel_names(), true);
  const bool of_notes = table.word("--sizes", kSizeSets) == "notes";
  std::vector<Configuration> configurations;
  for (const Size size : kSizes) {
    const bool any = std::any_of(chosen.begin(), chosen.end(),
                                 [&](const std::string& name) { return primer::find_kernel(name)->has(size); });
    if (!any && table.given(option_of(size)) && !table.text(option_of(size)).empty()) {
      throw table.error(option_of(size), "no kernel of --kernel has this size");
    }
  }
  for (const std::string& name : chosen) {
    const Kernel& kernel = *primer::find_kernel(name);
    // Rows vary the sizes in this order, the last fastest.
    std::vector<Problem> problems{of_notes ? kernel.notes : kernel.bench};
    for (const Size size : kSizes) {
      if (!kernel.has(size) || table.text(option_of(size)).empty()) continue;
      std::vector<Problem> varied;
      for (const Problem& problem : problems) {
        for (const std::int64_t value : table.integers(option_of(size), 1, kMaxSize)) {
          varied.push_back(problem);
          varied.back().set(size, value);
        }
      }
      problems = std::move(varied);
    }
    for (const DType dtype : settings.dtypes) {
      for (Problem problem : problems) {
        problem.dtype = dtype;
        if (const std::string reason = primer::invalid_reason(kernel, problem); !reason.empty()) {
          throw UsageError(name + " of " + primer::describe(kernel, problem) + ": " + reason);
        }
        configurations.push_back({&kernel, problem});
      }
    }
  }
  return configurations;
}

}  // namespace warpmeter::kernel_bench
