#include <cmath>

#include "reports/detail/json_text.hpp"
#include "tools/harness/doctor/host_facts.hpp"
#include "tools/harness/doctor/report.hpp"

namespace warpmeter::harness::doctor {
namespace {

using reports::Object;
using reports::Value;

constexpr double kMiB = 1024.0 * 1024.0;

Value known(const std::string& text) {
  return text.empty() ? Value() : Value(text);
}
Value mib(std::size_t bytes) {
  return bytes == 0 ? Value() : Value(static_cast<double>(bytes) / kMiB);
}
Value bits(const std::optional<std::uint64_t>& reasons) {
  return reasons ? Value(*reasons) : Value();
}
Value throttle_words(const std::optional<std::uint64_t>& reasons) {
  return reasons ? Value(throttle_text(*reasons, true)) : Value();
}
Value list(const std::vector<std::string>& texts) {
  Value::Array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

Object host_object(const HostFacts& host) {
  Object object;
  object.set("cpu", known(host.cpu));
  object.set("vendor", known(host.vendor));
  object.set("family", host.family);
  object.set("model", host.model);
  object.set("virtual_machine", host.virtual_machine);
  object.set("features", list(host.features));
  object.set("isa", known(host.isa));
  object.set("machine_isa", known(host.machine_isa));
  object.set("native_bf16", host.native_bf16);
  object.set("present_cpus", known(cpu_list_text(host.present)));
  object.set("online_cpus", known(cpu_list_text(host.online)));
  object.set("allowed_cpus", known(cpu_list_text(host.allowed)));
  object.set("cpu_quota", Value(host.cpu_quota));
  object.set("usable_cores", host.usable_cores);
  object.set("physical_cores", host.allowed_cores == 0 ? Value() : Value(host.allowed_cores));
  object.set("smt", Value(host.smt));
  object.set("governors", list(host.governors));
  object.set("turbo", Value(host.turbo));
  object.set("clock_mhz", Value(host.clock_mhz));
  object.set("max_clock_mhz", Value(host.max_clock_mhz));
  object.set("numa_nodes", static_cast<std::int64_t>(host.machine_numa_nodes));
  object.set("numa_nodes_used", static_cast<std::int64_t>(host.numa_nodes.size()));
  object.set("memory_mib", mib(host.memory_bytes));
  object.set("available_mib", mib(host.available_bytes));
  object.set("huge_pages", known(host.huge_pages));
  object.set("load", Value(host.load));
  object.set("running_threads", host.running);
  return object;
}

Object gpu_object(const GpuFacts& gpu) {
  Object object;
  object.set("nvml_index", gpu.nvml_index);
  object.set("cuda_index", Value(gpu.cuda_index));
  object.set("name", known(gpu.name));
  object.set("uuid", known(gpu.uuid));
  object.set("pci_bus_id", known(gpu.pci_bus_id));
  object.set("sm", Value(gpu.sm));
  object.set("memory_mib", Value(gpu.memory_mib));
  object.set("memory_used_mib", Value(gpu.memory_used_mib));
  object.set("clock_mhz", Value(gpu.clock_mhz));
  object.set("max_clock_mhz", Value(gpu.max_clock_mhz));
  object.set("memory_clock_mhz", Value(gpu.memory_clock_mhz));
  object.set("max_memory_clock_mhz", Value(gpu.max_memory_clock_mhz));
  object.set("throttle_bits", bits(gpu.throttle));
  object.set("throttle", throttle_words(gpu.throttle));
  object.set("load_throttle_bits", bits(gpu.load_throttle));
  object.set("load_throttle", throttle_words(gpu.load_throttle));
  object.set("load_clock_mhz", Value(gpu.load_clock_mhz));
  object.set("utilization_share", gpu.utilization_percent ? Value(*gpu.utilization_percent / 100.0) : Value());
  Value::Array processes;
  for (const GpuProcess& process : gpu.other_processes) {
    Object one;
    one.set("pid", static_cast<std::int64_t>(process.pid));
    one.set("memory_mib", Value(process.memory_mib));
    processes.emplace_back(std::move(one));
  }
  object.set("other_processes", std::move(processes));
  object.set("ecc", Value(gpu.ecc));
  object.set("ecc_pending", Value(gpu.ecc_pending));
  object.set("uncorrected_ecc_errors", bits(gpu.uncorrected_ecc_errors));
  object.set("mig", Value(gpu.mig));
  object.set("power_w", Value(gpu.power_w));
  object.set("power_limit_w", Value(gpu.power_limit_w));
  object.set("default_power_limit_w", Value(gpu.default_power_limit_w));
  object.set("temperature_c", Value(gpu.temperature_c));
  object.set("persistence", Value(gpu.persistence));
  object.set("compute_mode", Value(gpu.compute_mode));
  object.set("pcie_generation", Value(gpu.pcie_generation));
  object.set("max_pcie_generation", Value(gpu.max_pcie_generation));
  object.set("pcie_width", Value(gpu.pcie_width));
  object.set("max_pcie_width", Value(gpu.max_pcie_width));
  object.set("nvlinks", Value(gpu.nvlinks));
  object.set("numa_node", Value(gpu.numa_node));
  return object;
}

const char* word(Peer peer) {
  switch (peer) {
    case Peer::self:
      return "self";
    case Peer::nvlink:
      return "nvlink";
    case Peer::pcie:
      return "pcie";
    case Peer::none:
      return "none";
    case Peer::unknown:
      break;
  }
  return "unknown";
}

Object cuda_object(const Facts& facts) {
  const auto version = [](const std::optional<int>& number) {
    if (!number) return Value();
    return Value(std::to_string(*number / 1000) + "." + std::to_string(*number % 1000 / 10));
  };
  Object object;
  object.set("built", facts.cuda.built);
  object.set("runtime", version(facts.cuda.runtime));
  object.set("driver", known(facts.gpu_system.driver));
  object.set("driver_cuda", version(facts.gpu_system.driver_cuda));
  object.set("devices", facts.cuda.devices);
  object.set("unavailable", known(facts.cuda.unavailable));
  object.set("nvml", facts.gpu_system.library_found && facts.gpu_system.failure.empty());
  object.set("nvml_failure", known(facts.gpu_system.failure));
  return object;
}

}  // namespace

std::string to_json(const Facts& facts, const std::vector<Finding>& findings) {
  std::string text = "{\n";
  auto field = [&, first = true](std::string_view name, const Value& value) mutable {
    if (!first) text += ",\n";
    first = false;
    text += "  ";
    reports::detail::append_json(text, name);
    text += ": ";
    reports::detail::append_json(text, value);
  };
  field("schema", kSchema);
  field("tool", facts.tool);
  field("version", version_object(facts.build));
  field("argv", list(facts.argv));
  field("checked_at", facts.checked_at);
  field("device", facts.device);

  Value::Array found;
  Object counts;
  for (const Severity severity : {Severity::broken, Severity::warning, Severity::note}) counts.set(name(severity), 0);
  for (const Finding& finding : findings) {
    Object object;
    object.set("severity", name(finding.severity));
    object.set("id", finding.id);
    object.set("subject", finding.subject);
    object.set("seen", finding.seen);
    object.set("remedy", finding.remedy);
    found.emplace_back(std::move(object));
    const std::int64_t before = *counts.find(name(finding.severity))->as_int();
    counts.set(name(finding.severity), before + 1);
  }
  field("findings", std::move(found));
  field("summary", std::move(counts));

  Value::Array ceilings;
  for (const CeilingFact& ceiling : facts.ceilings) {
    Object object;
    object.set("name", ceiling.name);
    object.set("measured", ceiling.measured);
    object.set("datasheet", Value(ceiling.datasheet));
    object.set("share", ceiling.datasheet ? Value(ceiling.measured / *ceiling.datasheet) : Value());
    ceilings.emplace_back(std::move(object));
  }
  field("ceilings", std::move(ceilings));
  Value datasheet;
  if (facts.datasheet) {
    Object object;
    object.set("name", facts.datasheet->name);
    object.set("source", facts.datasheet->source);
    datasheet = std::move(object);
  }
  field("datasheet", datasheet);
  field("cuda", cuda_object(facts));
  Value::Array gpus;
  for (const GpuFacts& gpu : facts.gpu_system.gpus) gpus.emplace_back(gpu_object(gpu));
  field("gpus", std::move(gpus));
  Value::Array peers;
  for (const auto& row : facts.gpu_system.peers) {
    Value::Array words;
    for (const Peer peer : row) words.emplace_back(word(peer));
    peers.emplace_back(std::move(words));
  }
  field("peer_access", std::move(peers));
  field("host", host_object(facts.host));
  Object environment;
  for (const auto& [name, value] : facts.environment) environment.set(name, value);
  field("environment", std::move(environment));
  Value::Array libraries;
  for (const LibraryFacts& library : facts.libraries) {
    Object object;
    object.set("name", library.name);
    object.set("built", known(library.built));
    object.set("built_without", known(library.built_without));
    object.set("loaded", Value(library.loaded));
    object.set("purpose", library.purpose);
    libraries.emplace_back(std::move(object));
  }
  field("libraries", std::move(libraries));
  text += "\n}\n";
  return text;
}

}  // namespace warpmeter::harness::doctor
