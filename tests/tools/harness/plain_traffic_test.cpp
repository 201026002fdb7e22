#include "tools/harness/plain_traffic.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

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
    EXPECT_GT(found.plain_ms, 0);
    EXPECT_LT(found.plain_ms, 1e3);
    EXPECT_EQ(session.allocator().stats().harness, before);
    EXPECT_EQ(session.allocator().stats().peak.reserved, 0u);
  }
}

TEST_F(PlainTraffic, TakesLongerForMore) {
  settings_.steps = 1;
  Session session(settings_);
  const double of_little = measure_beside_plain(session, counted(), 1 << 20, 1 << 20).plain_ms;
  const double of_more = measure_beside_plain(session, counted(), 64 << 20, 64 << 20).plain_ms;
  EXPECT_GT(of_more, 2 * of_little);
}

TEST_F(PlainTraffic, IsUnknownWithoutRoom) {
  settings_.steps = 3;
  Session session(settings_);
  const BesidePlain found = measure_beside_plain(session, counted(), std::size_t{1} << 50, 64);
  EXPECT_EQ(found.samples.milliseconds.size(), 3u);
  EXPECT_TRUE(std::isnan(found.plain_ms));
}

}  // namespace
}  // namespace warpmeter::harness
