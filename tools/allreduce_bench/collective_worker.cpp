#include "tools/allreduce_bench/collective_worker.hpp"

#include "kernels/runtime/check.hpp"
#include "tools/allreduce_bench/demo.hpp"
#include "tools/allreduce_bench/measurement.hpp"

namespace warpmeter::allreduce_bench {

harness::launch::Outcome CollectiveWorker::measure(const harness::launch::RankAtWork& rank, std::size_t index) {
  WM_CHECK(index < configurations_.size(), "row " + std::to_string(index));
  return allreduce_bench::measure(rank, configurations_[index]);
}

std::string CollectiveWorker::perform(const harness::launch::RankAtWork& rank, const std::string& order) {
  const harness::launch::CallWatch::Scope scope(rank.watch, "the demo");
  return take_part_in_demo(rank.group, rank.session, std::stoull(order));
}

}  // namespace warpmeter::allreduce_bench
