#pragma once

#include <vector>

#include "kernels/collectives/backend.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness::launch {

/// Most ranks that --world-size takes.
inline constexpr int kMostRanks = 64;

/// Options of tools whose rows are measured by ranks, in the group "Ranks": --timeout, --rendezvous, --threads,
/// --interface, --auto-table.
void add_group_options(OptionTable& table);
/// Throws UsageError.
[[nodiscard]] collectives::BackendOptions backend_options(const OptionTable& table);
/// --timeout.
[[nodiscard]] double timeout_s(const OptionTable& table);
/// The backends that --backend (NAMES, or all) stands for; by default shm on the CPU, every one on GPUs.
[[nodiscard]] std::vector<const collectives::Backend*> chosen_backends(const OptionTable& table, Device device);
/// Words for messages: "shm, gloo, ...".
[[nodiscard]] std::string backend_words();

}  // namespace warpmeter::harness::launch
