#include "tests/reports/snapshot/sample.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "reports/snapshot/writer.hpp"

namespace warpmeter::reports::snapshot::test {

Sample::Sample() {
  snapshot.traces.resize(1);
}

StackId Sample::stack(std::string_view frames) {
  std::vector<std::uint32_t> indices;
  while (!frames.empty()) {
    const std::size_t end = frames.find('<');
    Frame frame;
    frame.name = snapshot.texts.intern(frames.substr(0, end));
    frame.filename = snapshot.texts.intern("model.cpp");
    frame.line = 10 + static_cast<std::int64_t>(indices.size());
    indices.push_back(snapshot.stacks.add_frame(frame));
    frames.remove_prefix(end == std::string_view::npos ? frames.size() : end + 1);
  }
  return snapshot.stacks.add_stack(indices);
}

Sample& Sample::event(Action action, std::uint64_t address, std::uint64_t size, std::string_view frames,
                      std::string_view category) {
  Event made;
  made.action = action;
  made.address = address;
  made.size = size;
  made.time_us = ++time_;
  made.stack = stack(frames);
  if (!category.empty()) {
    made.more = static_cast<FieldsId>(snapshot.fields.size());
    snapshot.fields.push_back({{Data{std::string("category")}, Data{std::string(category)}}});
  }
  snapshot.traces[0].push_back(made);
  return *this;
}

Sample& Sample::segment(std::uint64_t address, std::uint64_t size) {
  Segment made;
  made.address = address;
  made.total_size = size;
  made.type = snapshot.texts.intern("small");
  snapshot.segments.push_back(made);
  return *this;
}

Sample& Sample::block(std::uint64_t size, BlockState state, std::uint64_t requested, std::string_view frames) {
  Segment& segment = snapshot.segments.back();
  Block made;
  made.address = segment.blocks.empty() ? segment.address : segment.blocks.back().address + segment.blocks.back().size;
  made.size = size;
  made.state = state;
  made.requested = requested;
  made.stack = stack(frames);
  segment.blocks.push_back(made);
  return *this;
}

Sample& Sample::annotate(std::string_view stage, std::string_view name, std::int64_t time_us) {
  Annotation made;
  made.stage = snapshot.texts.intern(stage);
  made.name = snapshot.texts.intern(name);
  made.time_us = time_us;
  snapshot.annotations.push_back(made);
  return *this;
}

Snapshot Sample::done() {
  for (Segment& segment : snapshot.segments) {
    for (const Block& block : segment.blocks) {
      if (block.state == BlockState::inactive) continue;
      segment.active_size += block.size;
      segment.requested_size += block.requested;
      if (block.state == BlockState::active_allocated) segment.allocated_size += block.size;
    }
  }
  return std::move(snapshot);
}

Snapshot small() {
  constexpr std::uint64_t kBase = 0x7f0000000000, kMiB = 1 << 20;
  constexpr std::uint64_t kA = kBase, kB = kBase + 1024, kC = kBase + 1536, kD = kBase + 3584;
  Sample sample;
  sample.segment(kBase, 2 * kMiB)
      .block(1024, BlockState::inactive, 0)
      .block(512, BlockState::active_allocated, 500, "softmax<layer 1<forward")
      .block(2048, BlockState::inactive, 0)
      .block(4096, BlockState::active_allocated, 4096, "matmul<layer 2<backward")
      .block(2 * kMiB - 7680, BlockState::inactive, 0);
  sample.event(Action::alloc, kB, 500, "softmax<layer 1<forward", "activations")
      .event(Action::alloc, kC, 2048, "linear<layer 1<forward", "workspace")
      .event(Action::free_requested, kA, 1024)
      .event(Action::free_completed, kA, 1024)
      .event(Action::free_requested, kC, 2048)
      .event(Action::alloc, kD, 4096, "matmul<layer 2<backward", "gradients")
      .event(Action::free_completed, kC, 2048, "", "unknown");
  sample.annotate("START", "FWD_STEP", 1).annotate("END", "FWD_STEP", 5);
  sample.annotate("START", "BWD_STEP", 5).annotate("END", "BWD_STEP", 100);
  return sample.done();
}

std::string pickled(const Snapshot& snapshot, int protocol) {
  std::ostringstream out;
  write_pickle(snapshot, out, protocol);
  return out.str();
}

std::string fixture(std::string_view name) {
  const std::string path = std::string(WM_SNAPSHOT_FIXTURES) + "/" + std::string(name);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no fixture " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace warpmeter::reports::snapshot::test
