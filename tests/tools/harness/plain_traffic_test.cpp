#include "tools/harness/plain_traffic.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/runtime/allocator.hpp"

namespace warpmeter::harness {
namespace {

// Compiled for each device: WM_DEVICE is cpu or cuda.
class PlainTraffic : public testing::Test {
 protected:
  void SetUp() override {
    settings_.device = Device::WM_DEVICE();
    if (settings_.device.is_cpu()) return;
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    settings_.cache = CacheState::cold;
  }
  /// Of nothing: what it costs is all plain code's.
  Phase counted() {
    Phase phase;
    phase.enqueue = [this] { ++calls_; };
    return phase;
  }

  Settings settings_;
  int calls_ = 0;
};

TEST_F(PlainTraffic, IsMeasuredBesideThePhase) {
  settings_.warmup = 2;
  settings_.steps = 4;
  for (const auto& [read, written] : {std::pair<std::size_t, std::size_t>{1 << 20, 1 << 20}, {1 << 22, 100}, {0, 1}}) {
    Session session(settings_);
    (void)session.sampler();
    const std::size_t before = session.allocator().stats().harness;  // the flush's
    session.allocator().reset_peak();
    const BesidePlain found = measure_beside_plain(session, counted(), read, written);
    EXPECT_EQ(found.samples.milliseconds.size(), 4u);
    EXPECT_GT(found.plain_share, 0);
    EXPECT_TRUE(std::isfinite(found.plain_share));
    EXPECT_EQ(session.allocator().stats().harness, before);
    EXPECT_EQ(session.allocator().stats().peak.reserved, 0u);
  }
}

TEST_F(PlainTraffic, IsAsFastAsACopyBesideOne) {
  settings_.max_time_s = 0.5;
  for (const std::int64_t steps : {1, 20}) {
    settings_.steps = steps;
    Session session(settings_);
    const std::size_t bytes = std::size_t{64} << 20;
    const auto copy = ceilings::make_copy(session.context(), bytes);
    Phase phase;
    phase.enqueue = [&] { copy->enqueue(0); };
    const double share = measure_beside_plain(session, phase, bytes, bytes).plain_share;
    EXPECT_GT(share, 0.1);  // a busy machine's; other ways than the copy's first may be faster
    EXPECT_LT(share, 3);
  }
}

TEST_F(PlainTraffic, IsUnknownWithoutRoom) {
  settings_.steps = 3;
  Session session(settings_);
  const BesidePlain found = measure_beside_plain(session, counted(), std::size_t{1} << 50, 64);
  EXPECT_EQ(found.samples.milliseconds.size(), 3u);
  EXPECT_TRUE(std::isnan(found.plain_share));
}

}  // namespace
}  // namespace warpmeter::harness
