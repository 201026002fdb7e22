#pragma once

#include <cstddef>
#include <limits>

#include "tools/harness/session.hpp"

namespace warpmeter::harness {

/// A phase's samples, and what plain code takes for as many bytes.
struct BesidePlain {
  Samples samples;
  /// Plain code's time as a share of the phase's beside it; above 1 where it is the slower one. NaN where it was not
  /// measured: the device had no room for the buffers.
  double plain_share = std::numeric_limits<double>::quiet_NaN();
};

/// Measures `phase` as the session's sampler does, and beside it plain code that reads `read_bytes` and writes
/// `written_bytes` and computes nothing (ceilings::make_traffic): what the memory gives to this size and this mix at
/// this time, by the same timer and in the same state of the cache. A ceiling that is measured once a run, on large
/// buffers, does not tell that: a small call ends before the memory is at its full rate, reading and writing alone may
/// be slower than a copy, and the memory of a virtual machine changes its speed within seconds.
///
/// Of the several ways the one that is fastest in a short trial is taken. CPU: in turns with the phase's samples, ten
/// times at first and then for a fifth of the time; the share is the median over the turns, each beside the samples
/// around it. Where a call may find in the caches what the one before left there, a turn begins with an untimed call of
/// plain code and ends with one of the phase. GPU, and where there is one sample only: after them, for a tenth of a
/// second or ten samples; the share is that of the medians. The buffers are harness memory and given back on return.
[[nodiscard]] BesidePlain measure_beside_plain(Session& session, const Phase& phase, std::size_t read_bytes,
                                               std::size_t written_bytes);

}  // namespace warpmeter::harness
