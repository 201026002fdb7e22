#include <algorithm>
#include <cstring>

#include "tools/allreduce_bench/collective_tool.hpp"
#include "tools/allreduce_bench/collective_worker.hpp"
#include "tools/allreduce_bench/demo.hpp"
#include "tools/harness/launch/program.hpp"

namespace {

using namespace warpmeter;
using namespace warpmeter::allreduce_bench;

class Program final : public harness::launch::RankProgram {
 public:
  [[nodiscard]] std::unique_ptr<harness::Tool> tool(std::vector<std::string> argv,
                                                    std::shared_ptr<harness::launch::Ranks> joined) const override {
    return std::make_unique<CollectiveTool>(std::move(argv), std::move(joined));
  }
  [[nodiscard]] std::unique_ptr<harness::launch::Worker> worker(const harness::OptionTable& table,
                                                                const harness::Settings& settings,
                                                                int launched) const override {
    return std::make_unique<CollectiveWorker>(expand(table, settings, launched));
  }
  void check_launched(const harness::OptionTable& table, const std::string& /*launcher*/,
                      int /*world_size*/) const override {
    if (table.flag("--demo")) throw table.error("--demo", "it starts its ranks itself: call it without a launcher");
  }
  [[nodiscard]] std::optional<int> run_instead(int argc, const char* const* argv) const override {
    const bool demo =
        std::any_of(argv + 1, argv + argc, [](const char* word) { return std::strcmp(word, "--demo") == 0; });
    return demo ? std::optional(run_demo(argc, argv)) : std::nullopt;
  }
};

}  // namespace

int main(int argc, char** argv) {
  return harness::launch::run_rank_program(Program(), argc, argv);
}
