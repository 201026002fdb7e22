#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/launch/worker.hpp"
#include "tools/harness/tool.hpp"

namespace warpmeter::harness::launch {

/// A program some or all of whose rows are measured by ranks, each a process of the same program.
class RankProgram {
 public:
  virtual ~RankProgram() = default;
  /// The tool. `argv`: for ranks that it starts. `joined`: those that a launcher has started, rank 0 of which this
  /// process leads; or null.
  [[nodiscard]] virtual std::unique_ptr<Tool> tool(std::vector<std::string> argv,
                                                   std::shared_ptr<Ranks> joined) const = 0;
  /// What the ranks do. `launched`: ranks that a launcher has started, 0 for none. Throws UsageError.
  [[nodiscard]] virtual std::unique_ptr<Worker> worker(const OptionTable& table, const Settings& settings,
                                                       int launched) const = 0;
  /// Whether these options have rows for ranks at all. Where not, a launcher is none of this program's
  /// business once check_launched() has had its say.
  [[nodiscard]] virtual bool wants_ranks(const OptionTable& /*table*/) const { return true; }
  /// Throws UsageError for options that make no sense under a launcher.
  virtual void check_launched(const OptionTable& /*table*/, const std::string& /*launcher*/, int /*world_size*/) const {
  }
  /// Instead of all that, without a launcher: the exit status. nullopt: nothing is to be done instead.
  [[nodiscard]] virtual std::optional<int> run_instead(int /*argc*/, const char* const* /*argv*/) const {
    return std::nullopt;
  }
};

/// main() of such a program: as a rank that the program has started, as one that a launcher has started, or as the one
/// that leads. Catches everything. Returns the exit status.
int run_rank_program(const RankProgram& program, int argc, const char* const* argv);

/// Where a launcher (mpirun, srun, torchrun, ...) has started this process as one rank of many: the process's whole
/// work, and its exit status. Rank 0 leads and prints; the others do as they are told. nullopt: nobody has.
/// Throws UsageError and other exceptions for main() to tell.
[[nodiscard]] std::optional<int> run_launched(const RankProgram& program, int argc, const char* const* argv);

}  // namespace warpmeter::harness::launch
