#include "tools/harness/launch/options.hpp"

#include <string>
#include <utility>

#include "tools/harness/row_option.hpp"

namespace warpmeter::harness::launch {
namespace {

using collectives::Backend;

}  // namespace

void add_group_options(OptionTable& table) {
  const auto add = [&table](OptionSpec spec) {
    spec.group = "Ranks";
    table.add(std::move(spec));
  };
  add(value_option(
      "--timeout", "SECONDS", "60", "seconds from 0.1 to 86400",
      "Longest that a collective, or a rank on its way to it, may take. Then the ranks are ended, the row says "
      "which of them did not come, and the rows before it stay.",
      "--timeout 10"));
  add(value_option(
      "--rendezvous", "HOST:PORT", "", "a host's name or address and a port from 1 to 65535",
      "Where rank 0 listens for ranks that a launcher has started. Otherwise from MASTER_ADDR and MASTER_PORT, "
      "or through the MPI library.",
      "--rendezvous node1:29500"));
  OptionSpec threads = value_option("--threads", "N", "", "a whole number from 1 to 64",
                                    "shm: threads of a rank that move data.", "--threads 4");
  threads.default_note = "the cores divided by the ranks";
  add(threads);
  OptionSpec blocks =
      value_option("--max-blocks", "N", "", "a whole number from 1 to 128",
                   "nccl, p2p, auto: most multiprocessors that a collective takes: what computes beside it has "
                   "the others.",
                   "--max-blocks 8");
  blocks.default_note = "the backend's choice";
  add(blocks);
  OptionSpec interface =
      value_option("--interface", "NAME", "", "a network interface of this host, or an address of it",
                   "gloo: where the ranks talk.", "--interface eth0");
  interface.default_note = "the loopback on one host, else the one that reaches rank 0";
  add(interface);
  OptionSpec auto_table =
      value_option("--auto-table", "FILE", "", "a file as auto writes it",
                   "auto: sizes at which it changes between p2p and nccl. Measured and written there if "
                   "there is no such file yet.",
                   "--auto-table sizes.txt");
  auto_table.default_note = "measured when the ranks start";
  add(auto_table);
}

collectives::BackendOptions backend_options(const OptionTable& table) {
  collectives::BackendOptions options;
  options.timeout_s = timeout_s(table);
  if (!table.text("--threads").empty()) options.threads = static_cast<int>(table.integer("--threads", 1, 64));
  if (!table.text("--max-blocks").empty()) {
    options.max_blocks = static_cast<int>(table.integer("--max-blocks", 1, 128));
  }
  options.interface = table.text("--interface");
  options.auto_table = table.text("--auto-table");
  return options;
}

double timeout_s(const OptionTable& table) {
  return table.number("--timeout", 0.1, 86'400);
}

std::vector<const Backend*> chosen_backends(const OptionTable& table, Device device) {
  std::vector<const Backend*> chosen;
  if (!table.text("--backend").empty()) {
    for (const std::string& word : table.words("--backend", collectives::backend_names(), true)) {
      chosen.push_back(collectives::find_backend(word));
    }
    return chosen;
  }
  for (const Backend* backend : collectives::backends()) {
    if (backend->device_kind() != device.kind) continue;
    if (device.is_cpu() && backend->name() != "shm") continue;
    chosen.push_back(backend);
  }
  return chosen;
}

std::string backend_words() {
  std::string text;
  for (const std::string_view word : collectives::backend_names()) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

}  // namespace warpmeter::harness::launch
