#include "reports/snapshot/reader.hpp"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "reports/snapshot/writer.hpp"
#include "tests/reports/snapshot/sample.hpp"

namespace warpmeter::reports::snapshot {
namespace {

using namespace std::string_literals;
using test::fixture;
using test::pickled;
using test::small;

std::string problem_of(std::string_view bytes, const ReadLimits& limits = {}) {
  try {
    (void)parse_snapshot(bytes, "file", limits);
    return "none";
  } catch (const ReadError& e) {
    return e.what();
  }
}

std::string json_of(const Snapshot& snapshot) {
  std::ostringstream out;
  write_json(snapshot, out);
  return out.str();
}

/// A snapshot as JSON around an event, a segment or further fields.
std::string with_event(const std::string& event) {
  return R"({"segments": [], "device_traces": [[)" + event + "]]}";
}
std::string with_segment(const std::string& fields) {
  return R"({"device_traces": [[]], "segments": [{"address": 4096, "total_size": 512, )" + fields + "}]}";
}

TEST(SnapshotReader, PyTorchsFilesHaveWhatPythonFindsInThem) {
  // Figures of a plain Python computation over the fixtures; snapshot_python_test.py computes more of them anew.
  const Snapshot toy = parse_snapshot(fixture("torch_snapshot_toy.pickle"), "toy");
  EXPECT_EQ(toy.segments.size(), 4U);
  ASSERT_EQ(toy.traces.size(), 1U);
  EXPECT_EQ(toy.traces[0].size(), 187U);
  EXPECT_EQ(toy.annotations.size(), 8U);
  const Event& oom = toy.traces[0].back();
  EXPECT_EQ(oom.action, Action::oom);
  EXPECT_EQ(oom.size, 4'000'000'000'000U);
  EXPECT_EQ(oom.device_free, 149'253'390'336U);
  EXPECT_EQ(oom.present & Event::kAddress, 0);
  EXPECT_EQ(toy.more_text(oom.more, "compile_context"), "N/A");
  const Event& first = toy.traces[0].front();
  EXPECT_EQ(first.action, Action::free_requested);
  EXPECT_EQ(first.address, 0x7f16efe44c00U);
  EXPECT_EQ(first.time_us, 1795984473120693);
  ASSERT_EQ(toy.stacks[first.stack].size(), 28U);
  EXPECT_EQ(toy.text(toy.stacks.frame(toy.stacks[first.stack][0]).name), "torch::unwind::unwind()");
  const Snapshot mid = parse_snapshot(fixture("torch_snapshot_mid.pickle"), "mid");
  EXPECT_EQ(mid.segments.size(), 36U);
  EXPECT_EQ(mid.traces[0].size(), 699U);
  EXPECT_EQ(mid.segments[0].pool, (std::array<std::int64_t, 2>{0, 0}));
  EXPECT_EQ(mid.text(mid.segments[0].type), "small");
}

TEST(SnapshotReader, WrittenAndReadAgainInEveryFormat) {
  for (const Snapshot& snapshot : {parse_snapshot(fixture("torch_snapshot_toy.pickle"), "toy"),
                                   parse_snapshot(fixture("torch_snapshot_mid.pickle"), "mid"), small()}) {
    for (int protocol = 2; protocol <= 4; ++protocol) {
      EXPECT_EQ(difference(snapshot, parse_snapshot(pickled(snapshot, protocol), "again")), "") << protocol;
    }
    EXPECT_EQ(difference(snapshot, parse_snapshot(json_of(snapshot), "json")), "");
  }
}

TEST(SnapshotReader, DifferencesAreFound) {
  const Snapshot snapshot = small();
  const auto differs = [&](auto&& change) {
    Snapshot other = small();
    change(other);
    return difference(snapshot, other);
  };
  EXPECT_EQ(differs([](Snapshot&) {}), "");
  EXPECT_EQ(differs([](Snapshot& s) { s.traces[0][2].size += 1; }), "device_traces[0][2]: size");
  EXPECT_EQ(differs([](Snapshot& s) { s.traces[0][2].stack = s.traces[0][0].stack; }), "device_traces[0][2]: frames");
  EXPECT_EQ(differs([](Snapshot& s) { s.traces[0][0].more = 0; }), "device_traces[0][0]: further fields");
  EXPECT_EQ(differs([](Snapshot& s) { s.segments[0].blocks[1].requested = 1; }), "segments[0].blocks[1]");
  EXPECT_EQ(differs([](Snapshot& s) { s.segments[0].stream = 1; }), "segments[0]: its own fields");
  EXPECT_EQ(differs([](Snapshot& s) { s.annotations.pop_back(); }), "number of annotations");
}

TEST(SnapshotReader, OlderAndSparserFiles) {
  // No addresses of blocks, no frames, no device, no trace: what PyTorch 1.x wrote, and what others write.
  const Snapshot old = parse_snapshot(
      R"({"segments": [{"address": 4096, "total_size": 1024, "blocks": [{"size": 512, "state": "inactive"},
          {"size": 512, "state": "active_allocated", "history": [{"real_size": 300}]}]}]})",
      "old");
  EXPECT_FALSE(old.has_traces);
  ASSERT_EQ(old.segments.at(0).blocks.size(), 2U);
  EXPECT_EQ(old.segments[0].blocks[1].address, 4608U);
  EXPECT_EQ(old.segments[0].blocks[1].requested, 512U) << "where nothing is said, the block's size";
  EXPECT_NE(find(old.fields[old.segments[0].blocks[1].more], "history"), nullptr);
  EXPECT_EQ(difference(old, parse_snapshot(pickled(old), "again")), "");
  // An action that is not known, and unsigned addresses.
  const Snapshot other = parse_snapshot(
      with_event(R"({"action": "workspace_snapshot", "addr": 18446744073709551615, "what": 1})"), "other");
  EXPECT_EQ(other.traces[0][0].action, Action::other);
  EXPECT_EQ(other.traces[0][0].address, 18446744073709551615U);
  EXPECT_EQ(difference(other, parse_snapshot(pickled(other), "again")), "");
}

TEST(SnapshotReader, OfAKeyThatComesTwiceTheLastValueCounts) {
  const Snapshot read =
      parse_snapshot(with_event(R"({"action": "oom", "size": 1, "size": 2, "x": 1, "x": 2})"), "twice");
  EXPECT_EQ(read.traces[0][0].size, 2U);
  ASSERT_EQ(read.fields[read.traces[0][0].more].size(), 1U);
  EXPECT_EQ(*find(read.fields[read.traces[0][0].more], "x")->as_integer(), 2);
}

TEST(SnapshotReader, WhatIsWrongIsSaidWhere) {
  EXPECT_EQ(problem_of(""), "file: is empty");
  EXPECT_EQ(problem_of("\x1f\x8b\x08"), "file: compressed with gzip: gunzip it first");
  EXPECT_EQ(problem_of("PK\x03\x04"),
            "file: a zip file, as torch.save() writes; snapshots are written by _dump_snapshot()");
  EXPECT_EQ(problem_of("hello"), "file: byte 0: value 101 is used before it is remembered");
  EXPECT_EQ(problem_of("{}"), "file: not a memory snapshot: there is no 'segments'");
  EXPECT_EQ(problem_of("[1]"), "file: not a memory snapshot: a list");
  EXPECT_EQ(problem_of("N."), "file: not a memory snapshot: None");
  EXPECT_EQ(problem_of(R"({"segments": 3})"), "file: segments: is an int, not a list");
  EXPECT_EQ(problem_of(R"({"segments": [3]})"), "file: segments[0]: is an int, not a dict");
  EXPECT_EQ(problem_of(R"({"segments": [], "device_traces": [3]})"), "file: device_traces[0]: is an int, not a list");
  EXPECT_EQ(problem_of(with_event("{}")), "file: device_traces[0][0]: there is no 'action'");
  EXPECT_EQ(problem_of(with_event(R"({"action": 1})")), "file: device_traces[0][0]: 'action' is an int, not a str");
  EXPECT_EQ(problem_of(with_event(R"({"action": "alloc", "size": 1})")),
            "file: device_traces[0][0]: there is no 'addr'");
  EXPECT_EQ(problem_of(with_event(R"({"action": "alloc", "addr": "x", "size": 1})")),
            "file: device_traces[0][0]: 'addr' is a str, not an int");
  EXPECT_EQ(problem_of(with_event(R"({"action": "alloc", "addr": -1, "size": 1})")),
            "file: device_traces[0][0]: 'addr' is negative");
  EXPECT_EQ(problem_of(with_event(R"({"action": "alloc", "addr": 1, "size": 1e3})")),
            "file: device_traces[0][0]: 'size' is a float, not an int");
  EXPECT_EQ(problem_of(with_event(R"({"action": "alloc", "addr": 1, "size": 9007199254740992})")),
            "file: device_traces[0][0]: 'size' is beyond 2^52 bytes");
  EXPECT_EQ(problem_of(with_event(R"({"action": "oom", "size": 1, "frames": [{"name": "f"}]})")),
            "file: device_traces[0][0].frames[0]: there is no 'filename'");
  EXPECT_EQ(problem_of(with_segment(R"("blocks": [{"size": 1}])")), "file: segments[0].blocks[0]: there is no 'state'");
  EXPECT_EQ(problem_of(with_segment(R"("stream": 0)")), "file: segments[0]: there is no 'blocks'");
  EXPECT_EQ(problem_of(with_segment(R"("blocks": [], "segment_pool_id": [1])")),
            "file: segments[0]: 'segment_pool_id' is no pair");
  EXPECT_EQ(problem_of(R"({"segments": [], "external_annotations": [{"name": "x"}]})"),
            "file: external_annotations[0]: not all of 'name', 'stage', 'device' and 'time_us' are there");
  EXPECT_NE(problem_of(R"({"segments": [)").find("byte "), std::string::npos);
  EXPECT_NE(problem_of(std::string("{\"segments\": []\0}", 17)).find("NUL byte"), std::string::npos);
  EXPECT_EQ(problem_of(std::string("\x80\x04\nx", 4)).find('\n'), std::string::npos) << "one line";
}

// Hostile ones

TEST(SnapshotReader, ValuesWithinThemselves) {
  // x = []; x.append(x); {'segments': [], 'x': x}
  EXPECT_EQ(problem_of("}(\x8c\x08segments]\x8c\x01x]\x94h\x00"
                       "au."s),
            "file: snapshot: nested too deeply, or within itself");
  // A segment whose blocks are the segments.
  EXPECT_NE(problem_of("}(\x8c\x08segments]\x94}(\x8c\x07"
                       "addressK\x01\x8c\ntotal_sizeK\x01\x8c\x06"
                       "blocksh\x00uau."s)
                .find("there is no 'size'"),
            std::string::npos);
}

TEST(SnapshotReader, AFileThatNamesItsValuesOverAndOver) {
  // x0 = (None, ...); x1 = (x0, ...) and so on, a thousand each: 10^18 values in a few kilobytes.
  std::string bytes = "}(\x8c\x08segments]\x8c\x01x(" + std::string(1000, 'N') + "t\x94";
  for (char i = 0; i < 5; ++i) {
    bytes += "0(";  // it is remembered
    for (int j = 0; j < 1000; ++j) bytes += std::string("h") + i;
    bytes += "t\x94";
  }
  const std::clock_t begin = std::clock();  // processor time: other programs take none of it
  EXPECT_NE(problem_of(bytes + "u.").find("used over and over"), std::string::npos) << problem_of(bytes + "u.");
  // The same trace a thousand times, each of a thousand events.
  std::string traces = "}(\x8c\x08segments]\x8c\rdevice_traces](](";
  for (int i = 0; i < 1000; ++i)
    traces += i == 0 ? "}(\x8c\x06"
                       "action\x8c\x03oom\x8c\x04sizeK\x01u\x94"
                     : "h\x00"s;
  traces += "e\x94";
  for (int i = 0; i < 20000; ++i) traces += "h\x01";
  traces += "eu.";
  EXPECT_NE(problem_of(traces).find("used over and over"), std::string::npos) << problem_of(traces);
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
}

TEST(SnapshotReader, DeepNestingInBothFormats) {
  EXPECT_EQ(problem_of(R"({"segments": [], "x": )" + std::string(100000, '[') + std::string(100000, ']') + "}"),
            "file: nested too deeply");
  std::string bytes = "}(\x8c\x08segments]\x8c\x01x";
  for (int i = 0; i < 1000; ++i) bytes += "(";
  bytes += "N";
  for (int i = 0; i < 1000; ++i) bytes += "t";
  EXPECT_EQ(problem_of(bytes + "u."), "file: snapshot: nested too deeply, or within itself");
}

TEST(SnapshotReader, CutAnywhereAndFlippedAnywhere) {
  const std::string whole = pickled(small());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(problem_of(std::string_view(whole).substr(0, size)), "none") << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {1, 8, 128}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ bit);
      (void)problem_of(flipped);  // an error or another snapshot, never a crash
    }
  }
}

TEST(SnapshotReader, FilesAndLimits) {
  EXPECT_THROW((void)read_snapshot("/nonexistent/file"), ReadError);
  EXPECT_THROW((void)read_snapshot("/"), ReadError);
  const std::string path = ::testing::TempDir() + "snapshot_reader_test.pickle";
  write_file(path, pickled(small()));
  EXPECT_EQ(difference(read_snapshot(path), small()), "");
  ReadLimits limits;
  limits.file_bytes = 100;
  EXPECT_THROW((void)read_snapshot(path, limits), ReadError);
  std::remove(path.c_str());
  limits = {};
  limits.memory_bytes = 1 << 16;
  EXPECT_NE(problem_of(fixture("torch_snapshot_toy.pickle"), limits).find("MiB of memory"), std::string::npos);
}

TEST(SnapshotWriter, FilesAreWholeOrAsTheyWere) {
  const std::string path = ::testing::TempDir() + "snapshot_write_test.txt";
  write_file(path, "first");
  write_file(path, "second");
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  EXPECT_EQ(text, "second");
  std::remove(path.c_str());
  try {
    write_file("/nonexistent/x", "text");
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "cannot write '/nonexistent/x': No such file or directory");
  }
  write_file("/dev/null", "text");
}

}  // namespace
}  // namespace warpmeter::reports::snapshot
