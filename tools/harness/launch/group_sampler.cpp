#include "tools/harness/launch/group_sampler.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include <fmt/core.h>

#include "kernels/collectives/control.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/timer.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::launch {
namespace {

using collectives::CollectiveBuffer;

enum class Command : std::int32_t { end, run, sample };

void tell(const RankAtWork& rank, std::array<std::int32_t, 2>& words) {
  const CollectiveBuffer buffer(words.data(), 2, DType::int32);
  rank.watch.again();
  rank.control.broadcast(buffer, buffer, 0);
}

double slowest(const RankAtWork& rank, const GroupPhase& phase, std::int64_t calls) {
  rank.watch.again();
  rank.control.barrier();
  const std::vector<double> all = gather(rank.control, phase.timed(calls));
  return *std::max_element(all.begin(), all.end());
}

void run(const RankAtWork& rank, const GroupPhase& phase) {
  rank.watch.again();
  phase.run();
}

/// Rank 0's: each of its readings is one of all ranks.
class GroupTimer final : public detail::Timer {
 public:
  GroupTimer(const RankAtWork& rank, const GroupPhase& phase) : rank_(rank), phase_(phase) {}
  void run(const Phase& /*phase*/) override {
    std::array<std::int32_t, 2> words{static_cast<std::int32_t>(Command::run), 1};
    tell(rank_, words);
    launch::run(rank_, phase_);
  }
  detail::Reading sample(const Phase& /*phase*/, std::int64_t calls) override {
    std::array<std::int32_t, 2> words{static_cast<std::int32_t>(Command::sample), static_cast<std::int32_t>(calls)};
    tell(rank_, words);
    detail::Reading reading;
    reading.milliseconds = slowest(rank_, phase_, calls);
    return reading;
  }
  [[nodiscard]] std::int64_t least_warm_up() const override { return phase_.least_warm_up; }

 private:
  const RankAtWork& rank_;
  const GroupPhase& phase_;
};

void follow(const RankAtWork& rank, const GroupPhase& phase) {
  for (;;) {
    std::array<std::int32_t, 2> words{};
    tell(rank, words);
    switch (static_cast<Command>(words[0])) {
      case Command::run:
        run(rank, phase);
        break;
      case Command::sample:
        (void)slowest(rank, phase, words[1]);
        break;
      case Command::end:
        return;
    }
  }
}

}  // namespace

std::vector<double> gather(collectives::Communicator& control, double mine) {
  std::vector<double> all;
  for (const std::vector<double>& theirs : gather(control, std::vector<double>{mine})) all.push_back(theirs.front());
  return all;
}

std::vector<std::vector<double>> gather(collectives::Communicator& control, const std::vector<double>& mine) {
  std::string text;
  for (const double number : mine) text += fmt::format("{:a} ", number);
  std::vector<std::vector<double>> all;
  for (const std::string& theirs : collectives::all_gather_bytes(control, text)) {
    all.emplace_back();
    char* end = nullptr;
    for (const char* at = theirs.c_str(); *at != '\0'; at = end + 1) all.back().push_back(std::strtod(at, &end));
  }
  return all;
}

Samples sample_together(const RankAtWork& rank, const GroupPhase& phase) {
  if (rank.control.rank() != 0) {
    follow(rank, phase);
    return {};
  }
  Sampler sampler(std::make_unique<GroupTimer>(rank, phase), detail::steady_clock(), rank.session.settings(),
                  [&](const std::string& text) { rank.session.warn(text); });
  Phase of_timer;
  of_timer.enqueue = [] {};  // the timer knows what to do
  Samples samples = sampler.measure(of_timer);
  std::array<std::int32_t, 2> words{static_cast<std::int32_t>(Command::end), 0};
  tell(rank, words);
  return samples;
}

}  // namespace warpmeter::harness::launch
