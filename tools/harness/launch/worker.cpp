#include "tools/harness/launch/worker.hpp"

#include <stdexcept>
#include <vector>

#include <fmt/core.h>

#include "kernels/collectives/control.hpp"

namespace warpmeter::harness::launch {

std::string Worker::perform(const RankAtWork& /*rank*/, const std::string& order) {
  throw std::logic_error("no such order: " + order);
}

Vote vote(collectives::Communicator& control, const Vote& mine) {
  const std::string text =
      mine.status == reports::Status::ok ? "" : std::string(reports::name(mine.status)) + " " + mine.reason;
  const std::vector<std::string> all = collectives::all_gather_bytes(control, text);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const std::size_t space = all[r].find(' ');
    const auto status = reports::parse_status(std::string_view(all[r]).substr(0, space));
    return {status.value_or(reports::Status::error), fmt::format("rank {}: {}", r, all[r].substr(space + 1))};
  }
  return {};
}

}  // namespace warpmeter::harness::launch
