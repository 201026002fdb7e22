#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

/// Reads /proc and /sys; `root` is put before both (for tests). What is not there stays empty.
[[nodiscard]] HostFacts read_host_facts(const std::string& root = "");

/// The NUMA node of a PCI device ("00000000:65:00.0", "0000:65:00.0"); none where the machine has no such notion.
[[nodiscard]] std::optional<int> numa_node_of_pci(const std::string& bus_id, const std::string& root = "");

/// "0-3,8" as numbers; empty for text that is not such a list.
[[nodiscard]] std::vector<int> parse_cpu_list(std::string_view text);

/// The inverse: "0-3,8".
[[nodiscard]] std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace warpmeter::harness::doctor
