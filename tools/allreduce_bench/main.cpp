#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

#include "kernels/collectives/launch_environment.hpp"
#include "tools/allreduce_bench/collective_tool.hpp"
#include "tools/allreduce_bench/configuration.hpp"
#include "tools/allreduce_bench/demo.hpp"
#include "tools/allreduce_bench/launched.hpp"
#include "tools/allreduce_bench/rank.hpp"
#include "tools/allreduce_bench/ranks.hpp"
#include "tools/harness/progress_console.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/usage_error.hpp"

namespace {

using namespace warpmeter;
using namespace warpmeter::allreduce_bench;

/// The options as the leader reads them: it has sent the same arguments.
int run_rank(Link link, int argc, const char* const* argv) {
  const CollectiveTool tool({});
  const harness::OptionTable table = harness::parse_command_line(tool, argc, argv);
  harness::Settings settings = harness::read_settings(table, tool.dtypes());
  tool.adjust(table, settings);
  const std::vector<Configuration> configurations = expand(table, settings, 0);
  return be_rank(std::move(link), configurations, settings, backend_options(table), true);
}

}  // namespace

int main(int argc, char** argv) {
  harness::ProgressConsole console("allreduce_bench");
  try {
    if (auto link = link_of_started_rank()) return run_rank(std::move(*link), argc, argv);
    if (const auto status = run_launched(argc, argv)) return *status;
    if (std::any_of(argv + 1, argv + argc, [](const char* word) { return std::strcmp(word, "--demo") == 0; })) {
      return run_demo(argc, argv);
    }
  } catch (const harness::UsageError& e) {
    console.line(e.what());
    return 2;
  } catch (const collectives::LaunchError& e) {
    console.line(e.what());
    return 2;
  } catch (const harness::Interrupted&) {
    console.line("interrupted");
    return 130;
  } catch (const std::exception& e) {
    console.line(e.what());
    return 1;
  }
  return harness::run_tool(CollectiveTool({argv, argv + argc}), argc, argv);
}
