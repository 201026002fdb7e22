#include <functional>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "reports/snapshot/check.hpp"
#include "reports/snapshot/labels.hpp"
#include "reports/snapshot/phases.hpp"
#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/summary.hpp"
#include "tests/reports/snapshot/sample.hpp"

namespace warpmeter::reports::snapshot {
namespace {

using test::fixture;
using test::Sample;
using test::small;

constexpr std::uint64_t kBase = 0x7f0000000000;

// Replay

TEST(Replay, LevelsAfterEveryEvent) {
  const Replay r = replay(small(), 0);
  EXPECT_EQ(r.before.allocated, 1024U);
  EXPECT_EQ(r.before.active, 1024U);
  EXPECT_EQ(r.before.reserved, 2U << 20);
  std::vector<std::uint64_t> allocated, active, requested;
  for (const Level& level : r.after) {
    allocated.push_back(level.allocated);
    active.push_back(level.active);
    requested.push_back(level.requested);
    EXPECT_EQ(level.reserved, 2U << 20);
  }
  EXPECT_EQ(allocated, (std::vector<std::uint64_t>{1536, 3584, 2560, 2560, 512, 4608, 4608}));
  EXPECT_EQ(active, (std::vector<std::uint64_t>{1536, 3584, 3584, 2560, 2560, 6656, 4608}));
  EXPECT_EQ(requested, (std::vector<std::uint64_t>{1524, 3572, 2548, 2548, 500, 4596, 4596}));
  EXPECT_EQ(r.peak_event, 5U);
  EXPECT_EQ(r.peak.allocated, 4608U);
}

TEST(Replay, AllocationsFromBeginningToEnd) {
  const Snapshot snapshot = small();
  const Replay r = replay(snapshot, 0);
  ASSERT_EQ(r.allocations.size(), 4U);
  const auto& [a, b, c, d] = std::tie(r.allocations[0], r.allocations[1], r.allocations[2], r.allocations[3]);
  EXPECT_EQ(a.begin, Allocation::kBefore);
  EXPECT_EQ(a.end, 2U);
  EXPECT_EQ(a.done, 3U);
  EXPECT_EQ(b.begin, 0U);
  EXPECT_EQ(b.size, 512U) << "as its block says";
  EXPECT_EQ(b.requested, 500U);
  EXPECT_EQ(b.end, Allocation::kNever);
  EXPECT_EQ(c.end, 4U);
  EXPECT_EQ(c.done, 6U) << "another stream used it until then";
  EXPECT_EQ(d.begin, 5U);
  EXPECT_EQ(r.of_event, (std::vector<std::uint32_t>{1, 2, 0, 0, 2, 3, 2}));
  EXPECT_TRUE(r.live_at_peak(b));
  EXPECT_FALSE(r.live_at_peak(c));
}

TEST(Replay, SegmentsComeAndGo) {
  Sample sample;
  sample.segment(0x1000, 4096).block(4096, BlockState::active_allocated, 4000);
  sample.event(Action::segment_alloc, 0x9000, 8192)
      .event(Action::segment_alloc, 0x1000, 4096)
      .event(Action::alloc, 0x1000, 4000)
      .event(Action::segment_free, 0x9000, 8192);
  const Replay r = replay(sample.done(), 0);
  EXPECT_EQ(r.before.reserved, 0U);
  EXPECT_EQ(r.after[1].reserved, 12288U);
  EXPECT_EQ(r.end().reserved, 4096U);
  EXPECT_EQ(r.reserved_peak, 12288U);
  EXPECT_EQ(r.peak.allocated, 4096U) << "the block's size and not what was asked for";
}

TEST(Replay, WhatWasGivenBackBeforeTheTraceIsActiveOnly) {
  Sample sample;
  sample.segment(0x1000, 2048).block(1024, BlockState::inactive, 0).block(1024, BlockState::active_pending_free, 1000);
  sample.event(Action::free_completed, 0x1000, 1024);
  const Replay r = replay(sample.done(), 0);
  EXPECT_EQ(r.before.allocated, 0U);
  EXPECT_EQ(r.before.active, 2048U);
  EXPECT_EQ(r.end().active, 1024U);
  EXPECT_TRUE(r.allocations.empty());
}

TEST(Replay, FilesWithoutATraceAndWithSeveralDevices) {
  Sample sample;
  sample.segment(0x1000, 1024).block(1024, BlockState::active_allocated, 1000);
  sample.segment(0x1000, 512).block(512, BlockState::active_allocated, 512);
  sample.snapshot.segments[1].device = 2;
  sample.snapshot.traces.clear();
  const Snapshot snapshot = sample.done();
  EXPECT_EQ(device_count(snapshot), 3U);
  EXPECT_TRUE(has_device(snapshot, 0));
  EXPECT_FALSE(has_device(snapshot, 1));
  const Replay r = replay(snapshot, 2);
  EXPECT_EQ(r.peak.allocated, 512U);
  EXPECT_EQ(r.peak_event, Replay::kNone);
  EXPECT_TRUE(r.live_at_peak(r.allocations.at(0)));
  const Summary summary = summarize(snapshot);
  ASSERT_EQ(summary.devices.size(), 2U);
  EXPECT_EQ(summary.devices[0].peak.allocated, 1024U);
  EXPECT_EQ(summary.devices[1].device, 2);
}

// Check

std::string problem_after(const std::function<void(Snapshot&)>& change) {
  Snapshot snapshot = small();
  change(snapshot);
  return check(snapshot).problem;
}

TEST(Check, GoodOnes) {
  const CheckResult result = check(small());
  EXPECT_EQ(result.problem, "");
  EXPECT_EQ(result.segments, 1U);
  EXPECT_EQ(result.blocks, 5U);
  EXPECT_EQ(result.events, 7U);
  for (const char* name : {"torch_snapshot_toy.pickle", "torch_snapshot_mid.pickle"}) {
    EXPECT_EQ(check(parse_snapshot(fixture(name), name)).problem, "") << name;
  }
}

TEST(Check, ATraceThatLostItsBeginningIsGood) {
  Snapshot snapshot = small();
  for (std::size_t kept = snapshot.traces[0].size(); kept-- > 0;) {
    snapshot.traces[0].erase(snapshot.traces[0].begin());
    // The last event alone has the one category that is "unknown"; without any event there is none at all.
    EXPECT_EQ(check(snapshot).problem, "") << kept;
  }
}

TEST(Check, SegmentsAndBlocks) {
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].blocks[1].address += 1; }),
            "segments[0].blocks[1]: starts at 0x7f0000000401, the one before ends at 0x7f0000000400: blocks must tile "
            "their segment");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].blocks.pop_back(); }),
            "segments[0]: its blocks end at 0x7f0000001e00, the segment at 0x7f0000200000: blocks must tile their "
            "segment");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].allocated_size = 1; }),
            "segments[0]: allocated_size 1, its blocks have 4608");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].active_size = 1; }),
            "segments[0]: active_size 1, its blocks have 4608");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].requested_size = 1; }),
            "segments[0]: requested_size 1, its blocks have 4596");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].device = 1; }),
            "segments[0]: device 1 has no trace: there are 1");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].blocks[1].requested = 513; }),
            "segments[0].blocks[1]: 513 bytes requested of 512 bytes");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments[0].blocks[1].present &= ~unsigned{Block::kRequested}; }),
            "segments[0].blocks[1]: has frames but no 'requested_size'");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.segments.push_back(s.segments[0]); }),
            "segments[1]: overlaps the segment at 0x7f0000000000");
}

TEST(Check, TheTraceAgainstTheSegments) {
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0].erase(s.traces[0].begin() + 4); }),
            "device_traces[0][1]: alloc of 2048 bytes at 0x7f0000000600: the block becomes free without being given "
            "back");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0].erase(s.traces[0].begin() + 6); }),
            "device_traces[0][4]: free_requested of 2048 bytes at 0x7f0000000600: there is no live block to give back, "
            "or it never becomes free");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][0].address = 0x10; }),
            "device_traces[0][0]: alloc of 500 bytes at 0x10: the block is neither given back later nor there at the "
            "end");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][3].address = s.traces[0][2].address = 0x10; }),
            "device_traces[0][3]: free_completed of 1024 bytes at 0x10: the block lies in no segment");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][6].size = 4096; }),
            "device_traces[0][6]: free_completed of 4096 bytes at 0x7f0000000600: afterwards the block at "
            "0x7f0000000e00 lies there and nobody handed it out");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][0].size = 5000; }),
            "device_traces[0][0]: alloc of 5000 bytes at 0x7f0000000400: the block has 512 bytes when it is given back "
            "or at the end");
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][5].action = Action::segment_alloc; }),
            "device_traces[0][5]: segment_alloc of 4096 bytes at 0x7f0000000e00: the block at 0x7f0000000e00 was live "
            "before its segment came");
  EXPECT_EQ(problem_after([](Snapshot& s) {
              s.traces[0][3].action = Action::segment_free;
              s.traces[0].erase(s.traces[0].begin() + 2);
            }),
            "device_traces[0][2]: segment_free of 1024 bytes at 0x7f0000000000: afterwards the segment at "
            "0x7f0000000000 lies there and never came");
  EXPECT_EQ(problem_after([](Snapshot& s) {
              s.traces[0][3].action = Action::segment_map;
              s.traces[0][3].address = 0x10000;
              s.traces[0].erase(s.traces[0].begin() + 2);
            }),
            "device_traces[0][2]: segment_map of 1024 bytes at 0x10000: the segment neither goes later nor is there at "
            "the end");
}

TEST(Check, ExpandableSegmentsInPieces) {
  // Two pieces mapped one after the other, listed as one segment; the second was away for a while.
  Sample sample;
  sample.segment(0x100000, 0x2000)
      .block(0x1800, BlockState::active_allocated, 0x1800)
      .block(0x800, BlockState::inactive, 0);
  sample.event(Action::segment_map, 0x100000, 0x1000)
      .event(Action::segment_map, 0x101000, 0x1000)
      .event(Action::segment_unmap, 0x101000, 0x1000)
      .event(Action::segment_map, 0x101000, 0x1000)
      .event(Action::alloc, 0x100000, 0x1800);
  const Snapshot snapshot = sample.done();
  EXPECT_EQ(check(snapshot).problem, "");
  const Replay r = replay(snapshot, 0);
  EXPECT_EQ(r.before.reserved, 0U);
  EXPECT_EQ(r.after[2].reserved, 0x1000U);
}

TEST(Check, CategoriesNeedAnUnknownOne) {
  EXPECT_EQ(problem_after([](Snapshot& s) { s.traces[0][6].more = 0; }),
            "device_traces: events have categories, and none is 'unknown': the web viewer fails on that");
}

// Phases

TEST(Phases, NestedAndOpenAndUnopened) {
  Sample sample;
  for (int i = 0; i < 10; ++i) sample.event(Action::oom, 0, 1);  // at 1 us to 10 us
  sample.annotate("END", "lost", 0)
      .annotate("START", "step", 2)
      .annotate("START", "layer 0", 3)
      .annotate("END", "layer 0", 5)
      .annotate("START", "layer 1", 5)
      .annotate("END", "step", 8)
      .annotate("START", "open", 9);
  const Snapshot snapshot = sample.done();
  const auto phases = phases_of(snapshot, 0);
  ASSERT_EQ(phases.size(), 4U);
  const auto is = [&](std::size_t i, std::string_view name, std::uint32_t begin, std::uint32_t end,
                      std::uint32_t depth) {
    EXPECT_EQ(snapshot.text(phases[i].name), name);
    EXPECT_EQ(phases[i].begin, begin) << name;
    EXPECT_EQ(phases[i].end, end) << name;
    EXPECT_EQ(phases[i].depth, depth) << name;
  };
  is(0, "step", 1, 7, 0);
  is(1, "layer 0", 2, 4, 1);
  is(2, "layer 1", 4, 10, 1);
  is(3, "open", 8, 10, 1);
}

// Summary

TEST(SummaryTest, PeakByCategoryOperationAndLayer) {
  const Summary summary = summarize(small());
  ASSERT_EQ(summary.devices.size(), 1U);
  const DeviceSummary& s = summary.devices[0];
  EXPECT_EQ(s.events, 7U);
  EXPECT_EQ(s.actions[static_cast<std::size_t>(Action::alloc)], 3U);
  EXPECT_EQ(s.peak.allocated, 4608U);
  EXPECT_EQ(s.peak_event, 5U);
  EXPECT_EQ(s.peak_time_us, 5);
  EXPECT_EQ(s.peak_phase, "BWD_STEP");
  EXPECT_EQ(s.peak_blocks, 2U);
  const auto is = [](const std::vector<Group>& groups, std::vector<std::pair<std::string, std::uint64_t>> expected) {
    std::vector<std::pair<std::string, std::uint64_t>> found;
    for (const Group& group : groups) found.emplace_back(group.name, group.bytes);
    EXPECT_EQ(found, expected);
  };
  is(s.categories, {{"gradients", 4096}, {"activations", 512}});
  is(s.operations, {{"matmul", 4096}, {"softmax", 512}});
  is(s.layers, {{"layer 2", 4096}, {"layer 1", 512}});
  ASSERT_EQ(s.largest_at_peak.size(), 2U);
  EXPECT_EQ(s.largest_at_peak[0].size, 4096U);
  EXPECT_EQ(s.largest_at_peak[0].source, "model.cpp:10");
  EXPECT_EQ(s.largest_at_peak[0].begin, 5U);
  EXPECT_FALSE(s.largest_at_peak[0].end.has_value());
  EXPECT_EQ(s.largest_at_peak[0].frames,
            (std::vector<std::string>{"matmul (model.cpp:10)", "layer 2 (model.cpp:11)", "backward (model.cpp:12)"}));
  ASSERT_EQ(s.largest.size(), 4U);
  EXPECT_EQ(s.largest[1].size, 2048U);
  EXPECT_EQ(s.segments, 1U);
  EXPECT_EQ(s.small_segments, 1U);
  EXPECT_EQ(s.inactive_bytes, (2U << 20) - 4608);
  EXPECT_EQ(s.inactive_blocks, 3U);
  EXPECT_EQ(s.largest_inactive, (2U << 20) - 7680);
  EXPECT_EQ(s.cached_segment_bytes, 0U);
  ASSERT_EQ(s.phases.size(), 2U);
  EXPECT_EQ(s.phases[0].name, "FWD_STEP");
  EXPECT_EQ(s.phases[0].peak, 3584U);
  EXPECT_EQ(s.phases[0].net, 2560 - 1024);
  EXPECT_EQ(s.phases[0].allocations, 2U);
  EXPECT_EQ(s.phases[0].allocated_bytes, 2560U);
  EXPECT_EQ(s.phases[1].peak, 4608U);
  EXPECT_EQ(s.phases[1].net, 4608 - 2560);
}

TEST(SummaryTest, PhasesWithinDifferentOnesAreApart) {
  Sample sample;
  for (std::uint64_t i = 0; i < 4; ++i) sample.event(Action::alloc, 0x1000 * (i + 1), 512);  // at 1 us to 4 us
  sample.annotate("START", "FWD_STEP", 1)
      .annotate("START", "LAYER_0", 1)
      .annotate("END", "LAYER_0", 2)
      .annotate("END", "FWD_STEP", 3)
      .annotate("START", "BWD_STEP", 3)
      .annotate("START", "LAYER_0", 4)
      .annotate("END", "LAYER_0", 5)
      .annotate("END", "BWD_STEP", 5);
  const Summary summary = summarize(sample.done());
  const DeviceSummary& s = summary.devices.at(0);
  std::vector<std::pair<std::string, std::uint64_t>> found;
  for (const PhaseFigures& phase : s.phases) found.emplace_back(phase.name, phase.allocations);
  EXPECT_EQ(found, (std::vector<std::pair<std::string, std::uint64_t>>{
                       {"FWD_STEP", 2}, {"FWD_STEP / LAYER_0", 1}, {"BWD_STEP", 2}, {"BWD_STEP / LAYER_0", 1}}));
  EXPECT_EQ(s.peak_phase, "BWD_STEP / LAYER_0");
}

TEST(SummaryTest, OperationsOfThisSuiteAreNamedByTheirFrame) {
  const auto operation = [](std::string_view frames) {
    Sample sample;
    const Snapshot snapshot = sample.event(Action::alloc, 0x1000, 512, frames).done();
    const Labels labels(snapshot);
    return std::string(labels.text(labels.of(snapshot.traces[0][0].stack).operation));
  };
  EXPECT_EQ(operation("q, k, v<QKV_MATMUL<LAYER_0<FWD_STEP"), "QKV_MATMUL");
  EXPECT_EQ(operation("ATTN_SOFTMAX<ATTENTION<LAYER_0<FWD_STEP"), "ATTN_SOFTMAX");
  EXPECT_EQ(operation("gradients<LAYER_0<BWD_STEP"), "gradients");
  EXPECT_EQ(operation("weights<model"), "weights");
}

TEST(SummaryTest, WhatWasThereBeforeHasTheCategoryOfItsFree) {
  Sample sample;
  sample.event(Action::free_requested, 0x1000, 512, "clear", "logits")
      .event(Action::free_completed, 0x1000, 512, "clear", "logits");
  const Summary summary = summarize(sample.done());
  const DeviceSummary& s = summary.devices.at(0);
  ASSERT_EQ(s.categories.size(), 1U);
  EXPECT_EQ(s.categories[0].name, "logits");
  EXPECT_EQ(s.operations.at(0).name, "(no frames)") << "the stack is that of the free";
}

TEST(SummaryTest, CategoriesOfPyTorchsStacks) {
  const Snapshot snapshot = parse_snapshot(fixture("torch_snapshot_mid.pickle"), "mid");
  const Labels labels(snapshot);
  const Replay r = replay(snapshot, 0);
  std::uint64_t gradients = 0, workspace = 0;
  std::string operation, source;
  for (const Allocation& a : r.allocations) {
    if (!r.live_at_peak(a)) continue;
    const std::string_view category = labels.text(labels.category(a));
    if (category == "gradients") {
      gradients += a.size;
      operation = labels.text(labels.of(a.stack).operation);
    }
    if (category == "workspace") {
      workspace += a.size;
      source = labels.text(labels.of(a.stack).source);
    }
  }
  // 16 linear layers of 512: weights of 1 MiB and biases of 2 KiB; AdamW's foreach step makes as much again.
  EXPECT_EQ(gradients, 16U * ((1 << 20) + 2048 + 512));
  EXPECT_EQ(workspace, gradients);
  EXPECT_TRUE(operation == "aten::mm" || operation == "aten::sum_dim_IntList") << operation;
  EXPECT_EQ(source, "torch_snapshot.py:9 <module>");
}

TEST(SummaryTest, MarkdownJsonAndCsv) {
  const Summary summary = summarize(small());
  std::ostringstream md, json, csv;
  write_summary(summary, "x.pickle", Format::md, 10, md);
  EXPECT_NE(md.str().find("- Peak: 0.0044 MiB allocated (0.0044 MiB asked for) in 2 blocks, 2 MiB reserved"),
            std::string::npos)
      << md.str();
  EXPECT_NE(md.str().find("after event 5 of 7, 0.005 ms from the first, in BWD"), std::string::npos) << md.str();
  EXPECT_NE(md.str().find("| gradients   |   0.0039 |      88.9% |      1 |"), std::string::npos) << md.str();
  write_summary(summary, "x.pickle", Format::json, 10, json);
  EXPECT_NE(json.str().find("\"peak\": {\"allocated_bytes\": 4608, \"requested_bytes\": 4596, \"active_bytes\": 6656"),
            std::string::npos)
      << json.str();
  write_summary(summary, "x.pickle", Format::csv, 10, csv);
  EXPECT_NE(csv.str().find("\n0,peak_by_category,gradients,4096,"), std::string::npos) << csv.str();
  EXPECT_NE(csv.str().find("\n0,totals,peak allocated,4608"), std::string::npos) << csv.str();
}

TEST(DifferenceTest, BothSidesOfEveryName) {
  const Summary a = summarize(small());
  Sample sample;
  sample.segment(kBase, 8192).block(8192, BlockState::active_allocated, 8000, "attention<layer 1");
  const Summary b = summarize(sample.done());
  const auto differences = compare(a, b);
  ASSERT_EQ(differences.size(), 1U);
  const DeviceDifference& d = differences[0];
  EXPECT_EQ(d.totals[0].name, "peak allocated");
  EXPECT_EQ(d.totals[0].change(), 8192 - 4608);
  ASSERT_EQ(d.operations.size(), 3U);
  EXPECT_EQ(d.operations[0].name, "attention");
  EXPECT_EQ(d.operations[0].a, 0U);
  EXPECT_EQ(d.operations[0].b, 8192U);
  EXPECT_EQ(d.operations[1].name, "matmul");
  EXPECT_EQ(d.operations[1].change(), -4096);
  ASSERT_EQ(d.layers.size(), 2U);
  EXPECT_EQ(d.layers[0].name, "layer 1");
  EXPECT_EQ(d.layers[0].change(), 8192 - 512);
  std::ostringstream md;
  write_difference(differences, "a.pickle", "b.pickle", Format::md, 10, md);
  EXPECT_NE(md.str().find("| attention |"), std::string::npos) << md.str();
}

}  // namespace
}  // namespace warpmeter::reports::snapshot
