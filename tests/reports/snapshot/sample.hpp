#pragma once

#include <string>
#include <string_view>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot::test {

/// Builds small snapshots: a segment's blocks and a trace, event by event.
class Sample {
 public:
  Sample();
  /// Events of device 0, one microsecond apart; `stack` names frames "a<b<c", innermost first.
  Sample& event(Action action, std::uint64_t address, std::uint64_t size, std::string_view stack = "",
                std::string_view category = "");
  /// A segment of device 0 at `address`; its blocks follow.
  Sample& segment(std::uint64_t address, std::uint64_t size);
  /// The next block of the last segment.
  Sample& block(std::uint64_t size, BlockState state, std::uint64_t requested, std::string_view stack = "");
  Sample& annotate(std::string_view stage, std::string_view name, std::int64_t time_us);
  /// Sums up the segments' blocks into their totals.
  Snapshot done();

  Snapshot snapshot;

 private:
  [[nodiscard]] StackId stack(std::string_view frames);
  std::int64_t time_ = 0;
};

/// One segment of 2 MiB. The trace: a (1024 B) is there before it begins; b (512) comes, c (2048) comes, a goes, c goes
/// and is used by another stream for a while, d (4096) comes, c becomes free; b and d stay.
[[nodiscard]] Snapshot small();

/// The protocol-4 pickle of `snapshot`.
[[nodiscard]] std::string pickled(const Snapshot& snapshot, int protocol = 4);

/// A file of tests/reports/snapshot/fixtures.
[[nodiscard]] std::string fixture(std::string_view name);

}  // namespace warpmeter::reports::snapshot::test
