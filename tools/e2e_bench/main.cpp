#include "tools/e2e_bench/data_parallel_worker.hpp"
#include "tools/e2e_bench/model_tool.hpp"
#include "tools/harness/launch/program.hpp"

namespace {

using namespace warpmeter;
using namespace warpmeter::e2e_bench;

class Program final : public harness::launch::RankProgram {
 public:
  [[nodiscard]] std::unique_ptr<harness::Tool> tool(std::vector<std::string> argv,
                                                    std::shared_ptr<harness::launch::Ranks> joined) const override {
    return std::make_unique<ModelTool>(std::move(argv), std::move(joined));
  }
  [[nodiscard]] std::unique_ptr<harness::launch::Worker> worker(const harness::OptionTable& table,
                                                                const harness::Settings& settings,
                                                                int launched) const override {
    return std::make_unique<DataParallelWorker>(expand_data_parallel(table, settings, launched));
  }
  [[nodiscard]] bool wants_ranks(const harness::OptionTable& table) const override {
    return wants_data_parallel(table);
  }
  void check_launched(const harness::OptionTable& table, const std::string& launcher, int world_size) const override {
    if (world_size == 1 || wants_data_parallel(table)) return;
    throw harness::UsageError(launcher + " has started " + std::to_string(world_size) +
                              " ranks, and one alone runs a model unless --data-parallel NAMES (naive, flat, overlap, "
                              "bucketed) says how they train it together");
  }
};

}  // namespace

int main(int argc, char** argv) {
  return harness::launch::run_rank_program(Program(), argc, argv);
}
