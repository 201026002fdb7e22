#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/snapshot.hpp"
#include "reports/writer.hpp"

namespace warpmeter::reports::snapshot {

/// Bytes and blocks of one category, operation or layer.
struct Group {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
};

/// One allocation as people read it.
struct NamedAllocation {
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  std::string category, operation, layer, source;
  std::vector<std::string> frames;     ///< innermost first
  std::optional<std::uint32_t> begin;  ///< event; none: before the trace
  std::optional<std::uint32_t> end;    ///< event; none: still there
};

/// A named phase, all its instances within the same others together.
struct PhaseFigures {
  std::string name;  ///< "BWD_STEP / LAYER_0"
  std::uint64_t count = 0;
  std::uint64_t peak = 0;             ///< most allocated during any of them
  std::int64_t net = 0;               ///< allocated at their ends less at their beginnings
  std::uint64_t allocations = 0;      ///< blocks handed out during them
  std::uint64_t allocated_bytes = 0;  ///< their bytes
  std::int64_t time_us = 0;
};

struct DeviceSummary {
  std::int64_t device = 0;
  std::uint64_t events = 0;
  std::array<std::uint64_t, kActions> actions{};
  Level begin, peak, end;
  std::uint64_t reserved_peak = 0;
  std::optional<std::uint32_t> peak_event;   ///< none: the trace begins at its peak, or there is none
  std::optional<std::int64_t> peak_time_us;  ///< from the trace's first event
  std::string peak_phase;                    ///< the innermost that covers it, as phases have it
  std::uint64_t peak_blocks = 0;

  // Live at the peak, the most bytes first.
  std::vector<Group> categories, operations, layers;
  std::vector<NamedAllocation> largest_at_peak;
  std::vector<NamedAllocation> largest;  ///< of all allocations

  // The segments as they are at the end.
  std::uint64_t segments = 0, small_segments = 0, expandable_segments = 0;
  std::uint64_t inactive_bytes = 0;  ///< reserved and in no active block
  std::uint64_t inactive_blocks = 0;
  std::uint64_t largest_inactive = 0;
  std::uint64_t cached_segment_bytes = 0;  ///< in segments without an active block: empty_cache() gives them back
  std::uint64_t ooms = 0;
  std::uint64_t oom_requested = 0;  ///< the last one's
  std::uint64_t oom_device_free = 0;

  std::vector<PhaseFigures> phases;  ///< in order of their first beginning
};

struct Summary {
  std::vector<DeviceSummary> devices;  ///< those with segments or events
  // What memsnap record wrote beside the snapshot.
  std::string workload;                         ///< empty: nothing
  std::optional<std::uint64_t> predicted_peak;  ///< by the memory model
};

struct SummaryOptions {
  std::size_t largest = 10;  ///< allocations listed
};

[[nodiscard]] Summary summarize(const Snapshot& snapshot, const SummaryOptions& options = {});

/// What two snapshots' peaks have and how much more the second has, by name.
struct Difference {
  std::string name;
  std::uint64_t a = 0, b = 0;
  std::uint64_t a_blocks = 0, b_blocks = 0;
  [[nodiscard]] std::int64_t change() const { return static_cast<std::int64_t>(b - a); }
};
struct DeviceDifference {
  std::int64_t device = 0;
  std::vector<Difference> totals;                          ///< peak, reserved peak, end, inactive
  std::vector<Difference> categories, operations, layers;  ///< live at the peak, the largest change first
  std::vector<Difference> phases;                          ///< peak during each
};
[[nodiscard]] std::vector<DeviceDifference> compare(const Summary& a, const Summary& b);

/// `limit` lines a table at most in Markdown (0: all). JSON and CSV have everything.
void write_summary(const Summary& summary, const std::string& file, Format format, std::size_t limit,
                   std::ostream& out);
void write_difference(const std::vector<DeviceDifference>& difference, const std::string& a, const std::string& b,
                      Format format, std::size_t limit, std::ostream& out);

}  // namespace warpmeter::reports::snapshot
