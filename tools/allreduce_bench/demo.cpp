#include "tools/allreduce_bench/demo.hpp"

#include <array>
#include <csignal>
#include <cstdio>

#include <fmt/core.h>

#include "kernels/runtime/random.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tools/allreduce_bench/collective_tool.hpp"
#include "tools/allreduce_bench/configuration.hpp"
#include "tools/harness/launch/group.hpp"
#include "tools/harness/launch/options.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/sweep_outputs.hpp"

namespace warpmeter::allreduce_bench {
namespace {

constexpr std::int64_t kEntries = 3;
constexpr std::int64_t kBound = 10;
constexpr int kRanks = 4;

std::string text_of(const Tensor& tensor, const Context& context) {
  std::array<std::int32_t, kEntries> values{};
  copy_bytes(values.data(), Device::cpu(), tensor.data(), tensor.device(), tensor.bytes(), context.stream);
  synchronize(context.stream);
  return fmt::format("[{}, {}, {}]", values[0], values[1], values[2]);
}

}  // namespace

std::string take_part_in_demo(collectives::Communicator& group, harness::Session& session, std::uint64_t seed) {
  const Context context = session.context();
  const Tensor tensor(context, {kEntries}, DType::int32);
  fill_integers(tensor, seed, static_cast<std::uint64_t>(group.rank()), context.stream, kBound);
  synchronize(context.stream);
  std::string text = text_of(tensor, context);
  group.all_reduce(tensor, tensor, collectives::ReduceOp::sum, context.stream);
  synchronize(context.stream);
  return text + " " + text_of(tensor, context);
}

int run_demo(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  const CollectiveTool tool(arguments);
  harness::OptionTable table = harness::parse_command_line(tool, argc, argv);
  for (const char* option : {"--output", "--format"}) {
    if (table.given(option)) {
      throw harness::UsageError(option, table.text(option), "--demo prints text and measures nothing",
                                "without --demo");
    }
  }
  harness::Settings settings = harness::read_settings(table, tool.dtypes());
  tool.adjust(table, settings);
  const collectives::Backend& backend = *harness::launch::chosen_backends(table, settings.device).front();
  const int ranks =
      table.text("--world-size").empty() ? kRanks : static_cast<int>(table.integer("--world-size", 1, 64));
  collectives::GroupShape shape;
  shape.world_size = shape.most_on_a_host = ranks;
  if (const auto reason = backend.unavailable(shape)) throw harness::UsageError(*reason);

  harness::install_interrupt_handler();
  const auto warn = [](const std::string& text) { fmt::print(stderr, "allreduce_bench: warning: {}\n", text); };
  const double timeout_s = harness::launch::timeout_s(table);
  harness::launch::Group group(harness::launch::start_ranks(ranks, backend.name() == "mpi", arguments, timeout_s),
                               backend, timeout_s, warn);
  std::string before, after;
  int rank = 0;
  for (const std::string& both : group.perform(std::to_string(settings.seed), "the demo")) {
    const std::size_t middle = both.find("] [") + 1;
    before += fmt::format("rank {} before all_reduce: {}\n", rank, both.substr(0, middle));
    after += fmt::format("rank {} after all_reduce:  {}\n", rank, both.substr(middle + 1));
    ++rank;
  }
  harness::ProgressConsole console("allreduce_bench");
  return harness::print_text(before + after, console) ? 0 : 1;
}

}  // namespace warpmeter::allreduce_bench
