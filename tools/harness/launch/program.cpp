#include "tools/harness/launch/program.hpp"

#include "kernels/collectives/launch_environment.hpp"
#include "tools/harness/launch/options.hpp"
#include "tools/harness/launch/rank.hpp"
#include "tools/harness/progress_console.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::launch {
namespace {

/// The options as the leader reads them: it has sent the same arguments.
int run_rank(const RankProgram& program, Link link, int argc, const char* const* argv) {
  const std::unique_ptr<Tool> tool = program.tool({}, nullptr);
  const OptionTable table = parse_command_line(*tool, argc, argv);
  Settings settings = read_settings(table, tool->dtypes());
  tool->adjust(table, settings);
  const std::unique_ptr<Worker> worker = program.worker(table, settings, 0);
  return be_rank(std::move(link), *worker, settings, backend_options(table), true);
}

}  // namespace

int run_rank_program(const RankProgram& program, int argc, const char* const* argv) {
  const std::unique_ptr<Tool> tool = program.tool({argv, argv + argc}, nullptr);
  ProgressConsole console(tool->name());
  try {
    if (auto link = link_of_started_rank()) return run_rank(program, std::move(*link), argc, argv);
    if (const auto status = run_launched(program, argc, argv)) return *status;
    if (const auto status = program.run_instead(argc, argv)) return *status;
  } catch (const UsageError& e) {
    console.line(e.what());
    return 2;
  } catch (const collectives::LaunchError& e) {
    console.line(e.what());
    return 2;
  } catch (const Interrupted&) {
    console.line("interrupted");
    return 130;
  } catch (const std::exception& e) {
    console.line(e.what());
    return 1;
  }
  return run_tool(*tool, argc, argv);
}

}  // namespace warpmeter::harness::launch
