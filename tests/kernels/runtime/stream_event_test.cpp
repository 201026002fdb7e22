#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/event.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter {
namespace {

const StreamView kCpu{Device::cpu(), nullptr};

TEST(Stream, EachOneIsANameOfItsOwn) {
  Stream a(Device::cpu());
  const Stream b(Device::cpu());
  EXPECT_NE(a.view(), b.view());
  EXPECT_NE(a.view(), kCpu);
  EXPECT_EQ(a.view().device, Device::cpu());
  const StreamView before = a;
  Stream moved(std::move(a));
  EXPECT_EQ(moved.view(), before);
  Stream assigned(Device::cpu());
  assigned = std::move(moved);
  EXPECT_EQ(assigned.view(), before);
  EXPECT_NO_THROW(synchronize(assigned));
}

TEST(Stream, CopiesAndFills) {
  // Around the size from which copies go parallel, and not multiples of anything.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, (std::size_t{4} << 20) - 1, std::size_t{4} << 20,
                                  (std::size_t{9} << 20) + 12345}) {
    std::vector<unsigned char> source(bytes), target(bytes + 2, 7);
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<unsigned char>(i * 31 + i / 251);
    copy_bytes(target.data() + 1, Device::cpu(), source.data(), Device::cpu(), bytes, kCpu);
    EXPECT_EQ(std::memcmp(target.data() + 1, source.data(), bytes), 0);
    EXPECT_EQ(target.front(), 7);
    EXPECT_EQ(target.back(), 7);
    fill_bytes(target.data() + 1, Device::cpu(), 0xFF, bytes, kCpu);
    EXPECT_EQ(target[1], 0xFF);
    EXPECT_EQ(std::memcmp(target.data() + 1, target.data() + 2, bytes - 1), 0);
    EXPECT_EQ(target.front(), 7);
    EXPECT_EQ(target.back(), 7);
  }
  EXPECT_NO_THROW(copy_bytes(nullptr, Device::cpu(), nullptr, Device::cpu(), 0, kCpu));
  EXPECT_NO_THROW(fill_bytes(nullptr, Device::cpu(), 1, 0, kCpu));
}

TEST(Stream, OverlappingCopyMovesForwardAndBack) {
  const std::size_t bytes = std::size_t{6} << 20;
  std::vector<unsigned char> data(bytes + 100);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 17 + i / 509);
  const std::vector<unsigned char> before = data;
  copy_bytes(data.data() + 100, Device::cpu(), data.data(), Device::cpu(), bytes, kCpu);
  EXPECT_EQ(std::memcmp(data.data() + 100, before.data(), bytes), 0);
}

TEST(Event, ElapsedTimeIsTheSteadyClocks) {
  Event begin(Device::cpu());
  Event end(Device::cpu());
  begin.record(kCpu);
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double slept = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  end.record(kCpu);
  EXPECT_TRUE(begin.query());
  EXPECT_NO_THROW(end.synchronize());
  EXPECT_GE(elapsed_ms(begin, end), slept);
  EXPECT_GE(elapsed_ms(begin, end), 20.0);
  EXPECT_EQ(elapsed_ms(begin, end), -elapsed_ms(end, begin));
}

TEST(Event, MovesAndRecordsAgain) {
  Event a(Device::cpu());
  Event b(Device::cpu());
  a.record(kCpu);
  b.record(kCpu);
  const double first = elapsed_ms(a, b);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  b.record(kCpu);
  EXPECT_GE(elapsed_ms(a, b), first + 2.0);
  Event c(std::move(b));
  const double same = elapsed_ms(a, c);
  Event d(Device::cpu());
  d = std::move(c);
  EXPECT_EQ(elapsed_ms(a, d), same);
  EXPECT_NO_THROW(d.block(Stream(Device::cpu())));
}

TEST(Event, RefusesWhatWasNeverRecorded) {
  Event recorded(Device::cpu());
  const Event not_recorded(Device::cpu());
  recorded.record(kCpu);
  EXPECT_THROW(static_cast<void>(elapsed_ms(recorded, not_recorded)), CheckError);
  EXPECT_THROW(recorded.record(StreamView{Device::cuda(0), nullptr}), CheckError);
}

}  // namespace
}  // namespace warpmeter
