#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/check.hpp"
#include "tests/kernels/runtime/fake_backend.hpp"

namespace warpmeter {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class HistoryTest : public ::testing::Test {
 protected:
  [[nodiscard]] static StreamView stream(std::uintptr_t number) {
    return {Device::cuda(0), reinterpret_cast<void*>(number)};
  }
  [[nodiscard]] std::string actions() const {
    std::string text;
    for (const MemoryEvent& event : allocator_.history().events) text += std::string(name(event.action)) + " ";
    return text;
  }

  test::FakeBackend device_{256 * kMiB};
  CachingAllocator allocator_{Device::cuda(0), device_};
};

std::int64_t wall_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST_F(HistoryTest, ActionsAreNamedAsInPyTorchsSnapshots) {
  EXPECT_EQ(name(MemoryAction::alloc), "alloc");
  EXPECT_EQ(name(MemoryAction::free_requested), "free_requested");
  EXPECT_EQ(name(MemoryAction::free_completed), "free_completed");
  EXPECT_EQ(name(MemoryAction::segment_alloc), "segment_alloc");
  EXPECT_EQ(name(MemoryAction::segment_free), "segment_free");
  EXPECT_EQ(name(MemoryAction::oom), "oom");
}

TEST_F(HistoryTest, RecordsNothingUntilStartedAndAfterStopped) {
  allocator_.free(allocator_.allocate(100, stream(1)));
  EXPECT_TRUE(allocator_.history().events.empty());
  allocator_.start_history(100, false);
  allocator_.free(allocator_.allocate(100, stream(1)));
  allocator_.stop_history();
  allocator_.free(allocator_.allocate(100, stream(1)));
  EXPECT_EQ(actions(), "alloc free_requested free_completed ");
  allocator_.start_history(100, false);
  EXPECT_EQ(actions(), "") << "started afresh";
  EXPECT_THROW(allocator_.start_history(0, false), CheckError);
}

TEST_F(HistoryTest, OrderAndContentsOfOneBlocksLife) {
  const std::int64_t before = wall_us();
  allocator_.start_history(100, false);
  void* const block = allocator_.allocate(1000, stream(7));
  allocator_.free(block);
  allocator_.empty_cache();
  const std::int64_t after = wall_us();
  EXPECT_EQ(actions(), "segment_alloc alloc free_requested free_completed segment_free ");
  const MemoryHistory history = allocator_.history();
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  std::int64_t last = 0;
  for (const MemoryEvent& event : history.events) {
    EXPECT_EQ(event.address, address);
    EXPECT_EQ(event.stream, stream(7).handle);
    EXPECT_TRUE(event.frames.empty());
    EXPECT_EQ(event.phase, 0U);
    const bool segment = event.action == MemoryAction::segment_alloc || event.action == MemoryAction::segment_free;
    EXPECT_EQ(event.size, segment ? 2 * kMiB : 1024);
    EXPECT_EQ(event.requested, segment ? 0U : 1000U);
    EXPECT_GE(event.time_us, last) << "oldest first";
    EXPECT_GE(event.time_us, before - 1000);
    EXPECT_LE(event.time_us, after + 1000);
    last = event.time_us;
  }
  EXPECT_EQ(history.dropped, 0U);
}

TEST_F(HistoryTest, AFreeIsCompletedWhenTheOtherStreamsAre) {
  void* const a = allocator_.allocate(1000, stream(1));
  allocator_.record_stream(a, stream(2));
  allocator_.start_history(100, false);
  allocator_.free(a);
  void* const b = allocator_.allocate(1000, stream(1));
  device_.complete_events();
  void* const c = allocator_.allocate(1000, stream(1));
  EXPECT_EQ(actions(), "free_requested alloc free_completed alloc ");
  allocator_.free(b);
  allocator_.free(c);
}

TEST_F(HistoryTest, OutOfMemorySaysWhatWasAskedAndWhatWasLeft) {
  allocator_.start_history(100, false);
  void* const block = allocator_.allocate(200 * kMiB, stream(1));
  EXPECT_THROW(static_cast<void>(allocator_.allocate(100 * kMiB + 1, stream(2))), OutOfMemory);
  EXPECT_EQ(actions(), "segment_alloc alloc oom ");
  const MemoryEvent event = allocator_.history().events.back();
  EXPECT_EQ(event.address, 0U);
  EXPECT_EQ(event.size, 100 * kMiB + 1);
  EXPECT_EQ(event.requested, 100 * kMiB + 1);
  EXPECT_EQ(event.device_free, 56 * kMiB);
  EXPECT_EQ(event.stream, stream(2).handle);
  allocator_.free(block);
}

TEST_F(HistoryTest, ARetryShowsTheCacheGoingFirst) {
  allocator_.free(allocator_.allocate(200 * kMiB, stream(1)));
  allocator_.start_history(100, false);
  allocator_.free(allocator_.allocate(250 * kMiB, stream(1)));
  EXPECT_EQ(actions(), "segment_free segment_alloc alloc free_requested free_completed ");
}

TEST_F(HistoryTest, KeepsTheNewestEventsAndCountsTheOthers) {
  void* const first = allocator_.allocate(512, stream(1));
  allocator_.start_history(7, false);
  std::vector<std::size_t> sizes;
  for (std::size_t i = 1; i <= 10; ++i) {
    sizes.push_back(512 * i);
    allocator_.free(allocator_.allocate(512 * i, stream(1)));  // three events each
  }
  const MemoryHistory history = allocator_.history();
  EXPECT_EQ(history.events.size(), 7U);
  EXPECT_EQ(history.dropped, 23U);
  EXPECT_EQ(actions(), "free_completed alloc free_requested free_completed alloc free_requested free_completed ");
  EXPECT_EQ(history.events[0].size, sizes[7]);
  EXPECT_EQ(history.events[1].size, sizes[8]);
  EXPECT_EQ(history.events[6].size, sizes[9]);
  allocator_.free(first);
}

TEST_F(HistoryTest, PhasesCoverTheirEvents) {
  allocator_.start_history(100, false);
  void* const a = allocator_.allocate(512, stream(1));
  allocator_.begin_phase("forward");
  void* const b = allocator_.allocate(512, stream(1));
  allocator_.begin_phase("backward");
  allocator_.free(b);
  allocator_.end_phase();
  allocator_.free(a);
  allocator_.end_phase();  // none open: nothing happens
  allocator_.begin_phase("forward");
  const MemoryHistory history = allocator_.history();
  ASSERT_EQ(history.phases.size(), 4U);
  EXPECT_EQ(history.phases[0].name, "");
  EXPECT_EQ(history.phases[1].name, "forward");
  EXPECT_EQ(history.phases[2].name, "backward");
  EXPECT_EQ(history.phases[3].name, "forward");
  EXPECT_GE(history.phases[1].begin_us, history.phases[0].begin_us);
  EXPECT_GE(history.phases[1].end_us, history.phases[1].begin_us);
  EXPECT_LE(history.phases[1].end_us, history.phases[2].begin_us);
  EXPECT_EQ(history.phases[3].end_us, 0) << "open";
  std::vector<std::uint32_t> phases;
  for (const MemoryEvent& event : history.events) phases.push_back(event.phase);
  EXPECT_EQ(phases, (std::vector<std::uint32_t>{0, 0, 1, 2, 2, 0, 0}));
}

TEST_F(HistoryTest, APhaseMayBeOpenBeforeRecordingStarts) {
  allocator_.begin_phase("ended before");
  allocator_.end_phase();
  allocator_.begin_phase("open");
  allocator_.start_history(100, false);
  allocator_.free(allocator_.allocate(512, stream(1)));
  allocator_.end_phase();
  const MemoryHistory history = allocator_.history();
  ASSERT_EQ(history.phases.size(), 2U);
  EXPECT_EQ(history.phases[1].name, "open");
  EXPECT_NE(history.phases[1].end_us, 0);
  EXPECT_EQ(history.events.at(1).phase, 1U);
}

TEST_F(HistoryTest, FramesOfEventsAndLiveBlocks) {
  allocator_.start_history(100, true);
  void* block = nullptr;
  {
    const Range outer("model");
    const Range inner("attention");
    block = allocator_.allocate(512, stream(1));
  }
  void* const plain = allocator_.allocate(512, stream(1));
  MemoryHistory history = allocator_.history();
  ASSERT_EQ(history.events.size(), 3U);
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_EQ(history.events[i].frames.size(), 2U);
    EXPECT_EQ(history.events[i].frames[0].name, "attention");
    EXPECT_EQ(history.events[i].frames[1].name, "model");
    EXPECT_NE(history.events[i].frames[0].file.find("allocator_history_test.cpp"), std::string_view::npos);
  }
  EXPECT_TRUE(history.events[2].frames.empty());
  auto blocks = allocator_.segments().at(0).blocks;
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0].frames.size(), 2U);
  EXPECT_TRUE(blocks[1].frames.empty());
  {
    const Range range("cleanup");
    allocator_.free(block);
  }
  history = allocator_.history();
  EXPECT_EQ(history.events.at(3).frames.at(0).name, "cleanup") << "who gave it back";
  EXPECT_TRUE(allocator_.segments().at(0).blocks.at(0).frames.empty());
  allocator_.free(plain);
}

TEST_F(HistoryTest, PhasesMayLieWithinOthers) {
  allocator_.start_history(100, false);
  allocator_.begin_phase("FWD_STEP");
  void* const a = allocator_.allocate(512, stream(1));
  {
    const PhaseScope layer(allocator_, "layer 0");
    allocator_.free(a);
  }
  void* const b = allocator_.allocate(512, stream(1));
  allocator_.push_phase("layer 1");
  allocator_.begin_phase("BWD_STEP");  // ends both
  allocator_.free(b);
  allocator_.pop_phase();
  allocator_.pop_phase();  // none open: nothing happens
  const MemoryHistory history = allocator_.history();
  std::vector<std::string> names;
  for (const MemoryPhase& phase : history.phases) names.push_back(phase.name);
  EXPECT_EQ(names, (std::vector<std::string>{"", "FWD_STEP", "layer 0", "layer 1", "BWD_STEP"}));
  std::vector<std::uint32_t> phases;
  for (const MemoryEvent& event : history.events) phases.push_back(event.phase);
  EXPECT_EQ(phases, (std::vector<std::uint32_t>{1, 1, 2, 2, 1, 4, 4}));
  for (std::size_t i = 1; i < history.phases.size(); ++i) EXPECT_NE(history.phases[i].end_us, 0) << i;
  EXPECT_LE(history.phases[2].end_us, history.phases[1].end_us);
  EXPECT_LE(history.phases[3].end_us, history.phases[4].begin_us);
}

TEST_F(HistoryTest, TimesAloneSayWhichPhaseAnEventIsIn) {
  // Thousands of events and boundaries within microseconds.
  allocator_.start_history(100000, false);
  for (int i = 0; i < 500; ++i) {
    allocator_.begin_phase("outer");
    allocator_.free(allocator_.allocate(512, stream(1)));
    const PhaseScope inner(allocator_, "inner");
    allocator_.free(allocator_.allocate(512, stream(1)));
  }
  allocator_.end_phase();
  allocator_.free(allocator_.allocate(512, stream(1)));
  const MemoryHistory history = allocator_.history();
  std::int64_t last = 0;
  for (std::size_t e = 0; e < history.events.size(); ++e) {
    const MemoryEvent& event = history.events[e];
    EXPECT_GE(event.time_us, last);
    last = event.time_us;
    std::uint32_t innermost = 0;
    for (std::uint32_t p = 1; p < history.phases.size(); ++p) {
      const MemoryPhase& phase = history.phases[p];
      if (phase.begin_us <= event.time_us && event.time_us < phase.end_us) innermost = p;
    }
    ASSERT_EQ(innermost, event.phase) << "event " << e;
  }
}

TEST_F(HistoryTest, CategoriesOfBlocksAndEvents) {
  void* weights = nullptr;
  {
    const CategoryScope scope("parameters");
    weights = allocator_.allocate(512, stream(1));  // before the recording
  }
  allocator_.start_history(100, false);
  void* inner = nullptr;
  void* outer = nullptr;
  {
    const CategoryScope activations("activations");
    {
      const CategoryScope workspace("workspace");
      inner = allocator_.allocate(1024, stream(1));
    }
    outer = allocator_.allocate(2048, stream(1));
  }
  void* const plain = allocator_.allocate(4096, stream(1));
  const std::vector<MemoryEvent> events = allocator_.history().events;
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].category, "workspace");
  EXPECT_EQ(events[1].category, "activations");
  EXPECT_EQ(events[2].category, "");
  const auto blocks = allocator_.segments().at(0).blocks;
  EXPECT_EQ(blocks.at(0).category, "parameters");
  EXPECT_EQ(blocks.at(1).category, "workspace");
  EXPECT_EQ(blocks.at(2).category, "activations");
  EXPECT_EQ(blocks.at(3).category, "");
  for (void* const block : {weights, inner, outer, plain}) allocator_.free(block);
  EXPECT_EQ(allocator_.segments().at(0).blocks.at(0).category, "") << "free again";
  EXPECT_EQ(allocator_.history().events.at(3).category, "parameters") << "a free names its block's";
}

TEST_F(HistoryTest, WhoWatchesForOutOfMemorySeesWhatWasThere) {
  allocator_.start_history(100, false);
  int calls = 0;
  std::size_t live = 0;
  allocator_.on_out_of_memory([&] {
    ++calls;
    EXPECT_EQ(allocator_.history().events.back().action, MemoryAction::oom);
    for (const MemorySegment& segment : allocator_.segments()) {
      for (const MemoryBlock& block : segment.blocks) {
        if (block.state == MemoryBlock::State::active_allocated) live += block.size;
      }
    }
  });
  void* const block = allocator_.allocate(200 * kMiB, stream(1));
  EXPECT_EQ(calls, 0);
  EXPECT_THROW(static_cast<void>(allocator_.allocate(100 * kMiB, stream(1))), OutOfMemory);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(live, 200 * kMiB);
  allocator_.on_out_of_memory({});
  EXPECT_THROW(static_cast<void>(allocator_.allocate(100 * kMiB, stream(1))), OutOfMemory);
  EXPECT_EQ(calls, 1);
  allocator_.free(block);
}

}  // namespace
}  // namespace warpmeter
