#include "kernels/collectives/detail/async_queue.hpp"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::collectives::detail {
namespace {

TEST(AsyncQueue, JobsRunInOrderWhileTheCallerGoesOn) {
  AsyncQueue queue;
  std::atomic<bool> go{false};
  std::vector<int> order;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    works.push_back(queue.submit([&, i] {
      while (!go.load()) std::this_thread::yield();
      order.push_back(i);
    }));
  }
  EXPECT_FALSE(works.front().done());
  go = true;
  queue.drain();
  EXPECT_EQ(order.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  for (const Work& work : works) EXPECT_TRUE(work.done());
}

TEST(AsyncQueue, AnErrorBelongsToItsWorkAlone) {
  AsyncQueue queue;
  const Work bad = queue.submit([] { throw std::runtime_error("no"); });
  const Work good = queue.submit([] {});
  EXPECT_THROW(bad.wait(), std::runtime_error);
  EXPECT_THROW(bad.wait(), std::runtime_error) << "on every call";
  EXPECT_TRUE(bad.done());
  EXPECT_NO_THROW(good.wait());
}

TEST(AsyncQueue, TheEndFinishesWhatWasSubmitted) {
  int ran = 0;
  Work last;
  {
    AsyncQueue queue;
    for (int i = 0; i < 5; ++i) last = queue.submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 5);
  EXPECT_NO_THROW(last.wait());
  EXPECT_TRUE(Work().done());
}

}  // namespace
}  // namespace warpmeter::collectives::detail
