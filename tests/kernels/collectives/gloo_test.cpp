#include "kernels/collectives/gloo.hpp"

#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kernels/collectives/launch.hpp"
#include "kernels/runtime/check.hpp"
#include "tests/kernels/collectives/conformance.hpp"
#include "tests/kernels/collectives/ranks.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::require;

RankContext context_of(Communicator& control) {
  RankContext context;
  context.rank = context.local_rank = control.rank();
  context.world_size = context.local_size = control.world_size();
  context.control = &control;
  return context;
}

class GlooWorldSize : public testing::TestWithParam<int> {};

TEST_P(GlooWorldSize, EveryCollectiveTypeAndOperation) {
  conformance::make_data();
  const int n = GetParam();
  const LaunchReport report = launch_ranks(ranks::options(n), [&](Communicator& control) {
    const auto group = gloo_backend().create(context_of(control));
    require(group->backend() == "gloo", "its name");
    conformance::Rank(*group, {false, n}).everything({n > 4 ? 0 : 1, 7});
    conformance::Rank(*group, {false, n}, 1).everything({20011});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Worlds, GlooWorldSize, testing::Values(1, 2, 3, 4, 6));

TEST(Gloo, ManyAsynchronousCallsInFlight) {
  const LaunchReport report = launch_ranks(ranks::options(3), [&](Communicator& control) {
    const auto group = gloo_backend().create(context_of(control));
    conformance::Rank(*group).asynchronous();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Gloo, ARankThatDoesNotComeEndsInATimeout) {
  LaunchOptions options = ranks::options(2);
  options.grace_s = 5;
  const LaunchReport report = launch_ranks(options, [&](Communicator& control) {
    RankContext context = context_of(control);
    context.options.timeout_s = 0.3;
    const auto group = gloo_backend().create(context);
    group->barrier();
    if (control.rank() == 0) {
      bool late = false;
      try {
        group->barrier();
      } catch (const CollectiveTimeout& error) {
        late = std::string(error.what()).find("gloo: barrier") != std::string::npos;
      }
      require(late, "a time-out");
    }
    control.barrier();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Gloo, AnInterfaceThatIsNotThereIsNamed) {
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& control) {
    RankContext context = context_of(control);
    context.options.interface = "no.such.host.invalid";
    bool refused = false;
    try {
      (void)gloo_backend().create(context);
    } catch (const DeviceError& error) {
      refused = std::string(error.what()).find("no.such.host.invalid") != std::string::npos;
    }
    require(refused, "refused by name");
    context.options.interface = "lo";
    (void)gloo_backend().create(context);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

}  // namespace
}  // namespace warpmeter::collectives
