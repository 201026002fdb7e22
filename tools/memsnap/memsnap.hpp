#pragma once

namespace warpmeter::memsnap {

/// `memsnap COMMAND ...`: records, reads, explains, compares and draws memory snapshots. Returns the exit status: 0; 1
/// when an invariant fails (check) or something went wrong; 2 for bad usage and files that cannot be read; 130 after
/// Ctrl-C. Catches everything.
int run_memsnap(int argc, const char* const* argv);

}  // namespace warpmeter::memsnap
