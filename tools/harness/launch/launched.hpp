#pragma once

#include <optional>

namespace warpmeter::allreduce_bench {

/// Where a launcher (mpirun, srun, torchrun, ...) has started this process as one rank of many: the process's whole
/// work, and its exit status. Rank 0 leads and prints; the others do as they are told. nullopt: nobody has.
/// Throws UsageError and other exceptions for main() to tell.
[[nodiscard]] std::optional<int> run_launched(int argc, const char* const* argv);

}  // namespace warpmeter::allreduce_bench
