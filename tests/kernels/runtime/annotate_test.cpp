#include "kernels/runtime/annotate.hpp"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter {
#ifdef WM_NVTX
namespace test {
std::vector<std::string>& nvtx_log();
}
#endif
namespace {

TEST(Range, FramesNestInnermostFirst) {
  EXPECT_TRUE(current_frames().empty());
  {
    const Range outer("outer");
    const unsigned outer_line = __LINE__ - 1;
    {
      const Range inner("inner");
      const std::vector<Frame> frames = current_frames();
      ASSERT_EQ(frames.size(), 2U);
      EXPECT_EQ(frames[0].name, "inner");
      EXPECT_EQ(frames[1].name, "outer");
      EXPECT_EQ(frames[1].line, outer_line);
      EXPECT_NE(frames[1].file.find("annotate_test.cpp"), std::string_view::npos);
    }
    EXPECT_EQ(current_frames().size(), 1U);
  }
  EXPECT_TRUE(current_frames().empty());
}

TEST(Range, EachThreadHasItsOwn) {
  const Range here("here");
  std::thread other([] {
    EXPECT_TRUE(current_frames().empty());
    const Range there("there");
    EXPECT_EQ(current_frames().size(), 1U);
  });
  other.join();
  EXPECT_EQ(current_frames().size(), 1U);
}

TEST(Range, EndsWhenAnExceptionLeaves) {
  try {
    const Range range("thrown through");
    throw 1;
  } catch (int) {
    EXPECT_TRUE(current_frames().empty());
  }
}

TEST(Intern, SameTextSameCopy) {
  std::string text = "attention";
  const std::string_view first = intern(text);
  text = "overwritten";
  EXPECT_EQ(first, "attention");
  EXPECT_EQ(intern("attention").data(), first.data());
  EXPECT_NE(intern("attention2").data(), first.data());
  EXPECT_EQ(intern(""), "");
}

TEST(Intern, FromManyThreads) {
  std::vector<std::thread> threads;
  std::vector<const char*> seen(8);
  for (std::size_t t = 0; t < seen.size(); ++t) {
    threads.emplace_back([&seen, t] {
      for (int i = 0; i < 200; ++i) static_cast<void>(intern("name" + std::to_string(i)));
      seen[t] = intern("name7").data();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const char* data : seen) EXPECT_EQ(data, seen[0]);
}

#ifdef WM_NVTX
TEST(Nvtx, RangesReachTheProfilerWithTheirExactNames) {
  ASSERT_TRUE(nvtx_enabled());
  test::nvtx_log().clear();
  {
    const Range outer("FWD_STEP");
    const std::string_view part = std::string_view("ATTN_SOFTMAX_AND_MORE").substr(0, 12);  // no NUL at its end
    const Range inner(part);
  }
  EXPECT_EQ(test::nvtx_log(), (std::vector<std::string>{"push FWD_STEP", "push ATTN_SOFTMAX", "pop", "pop"}));
  test::nvtx_log().clear();
  const std::string_view longest = intern(std::string(1000, 'x'));
  { const Range range(longest); }
  EXPECT_EQ(test::nvtx_log(), (std::vector<std::string>{"push " + std::string(255, 'x'), "pop"}));
}
#else
TEST(Nvtx, IsANoOpWithoutTheHeaders) {
  EXPECT_FALSE(nvtx_enabled());
}
#endif

TEST(RangeObserver, SeesTheThreadsRangesInOrder) {
  struct Log : RangeObserver {
    std::string text;
    void opened(std::string_view name) override { text.append("<").append(name); }
    void closed(std::string_view name) override { text.append(name).append(">"); }
  } log;
  const Range before("before");
  observe_ranges(&log);
  {
    const Range outer("a");
    const FrameScope frame("no range");
    const Range inner("b");
  }
  std::thread([] { const Range elsewhere("another thread"); }).join();
  observe_ranges(nullptr);
  const Range after("after");
  EXPECT_EQ(log.text, "<a<bb>a>");
}

}  // namespace
}  // namespace warpmeter
