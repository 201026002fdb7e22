#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"
#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/writer.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/memory_snapshot.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/settings.hpp"
#include "tools/harness/usage_error.hpp"
#include "tools/memsnap/command.hpp"
#include "tools/memsnap/workload.hpp"

namespace warpmeter::memsnap {
namespace {

using harness::OptionTable;
using harness::UsageError;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostEvents = 50'000'000;
constexpr int kWarmup = 2;

/// What every recording takes, beside the options of what is recorded.
void add_recording_options(OptionTable& table) {
  OptionTable shared("memsnap", "");
  harness::add_shared_options(shared);
  for (harness::OptionSpec spec : shared.specs()) {
    const auto is = [&](std::string_view name) { return spec.name == name; };
    if (is("--warmup")) {
      spec.default_text = std::to_string(kWarmup);
      spec.help = "Steps before the recording starts.";
      spec.group = "Recording";
    } else if (!is("--device") && !is("--seed") && !is("--memory-limit") && !is("--config") && !is("--print-config")) {
      continue;
    }
    table.add(std::move(spec));
  }
  const std::string group = "Recording";
  table.add({.name = "--steps",
             .metavar = "N",
             .default_text = "1",
             .accepted = "a whole number from 1 to 100000",
             .help = "Steps that are recorded.",
             .example = "--steps 3",
             .group = group});
  table.add({.name = "--frames",
             .negation = "--no-frames",
             .default_text = "true",
             .help = "Keep the stack of every event.",
             .example = "--no-frames",
             .group = group});
  table.add({.name = "--max-events",
             .metavar = "N",
             .default_text = "1000000",
             .accepted = fmt::format("a whole number from 1 to {}", kMostEvents),
             .help = "Keep the last N events.",
             .example = "--max-events 100000",
             .group = group});
  table.add({.name = "--overhead",
             .help =
                 "Write no snapshot: run --steps steps (at least 20 are worth asking for) in turn without recording, "
                 "recording without frames and with frames, and print what recording costs.",
             .example = "--overhead --steps 200",
             .group = group});
  add_output_options(table, "", ".pickle, .pkl or .json");
}

void add_options(OptionTable& table, const WorkloadKind& kind) {
  kind.add_options(table);
  add_recording_options(table);
}
void add_model_options(OptionTable& table) {
  add_options(table, kModelWorkload);
}
void add_attention_options(OptionTable& table) {
  add_options(table, kAttentionWorkload);
}

std::vector<std::string> snapshot_outputs(const OptionTable& table) {
  std::vector<std::string> outputs = table.texts("--output");
  for (const std::string& path : outputs) {
    if (!path.ends_with(".pickle") && !path.ends_with(".pkl") && !path.ends_with(".json")) {
      throw table.error("--output", path, "unknown ending");
    }
  }
  if (outputs.empty() && !table.flag("--overhead")) {
    throw UsageError("--output", "", "nothing to write to", "-o snapshot.pickle");
  }
  require_writable(table, outputs);
  return outputs;
}

/// What the recorder knows beside the snapshot, as one further entry of it.
void add_facts(reports::snapshot::Snapshot& snapshot, const Workload& workload, std::size_t peak) {
  using reports::snapshot::Data;
  reports::snapshot::DataDict facts;
  const auto set = [&](const char* name, Data value) {
    facts.keys.push_back({std::string(name)});
    facts.values.push_back(std::move(value));
  };
  set("workload", {workload.describe()});
  set("allocator_peak_bytes", {static_cast<std::int64_t>(peak)});
  if (const std::size_t predicted = workload.predicted_peak(); predicted != 0) {
    set("predicted_peak_bytes", {static_cast<std::int64_t>(predicted)});
  }
  snapshot.more.emplace_back(Data{std::string("recording")}, Data{std::move(facts)});
}

void write_outputs(const reports::snapshot::Snapshot& snapshot, const std::vector<std::string>& outputs) {
  for (const std::string& path : outputs) {
    std::ostringstream text;
    if (path.ends_with(".json")) {
      write_json(snapshot, text);
    } else {
      write_pickle(snapshot, text);
    }
    reports::snapshot::write_file(path, text.view());
  }
}

std::string listed(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Steps with each way of recording in turn, so that drift hits all alike.
int measure_overhead(Workload& workload, const Context& context, std::int64_t steps) {
  CachingAllocator& allocator = *context.allocator;
  constexpr std::array<const char*, 3> kNames = {"not recording", "events", "events and frames"};
  std::array<std::vector<double>, 3> ms;
  std::size_t events = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    for (std::size_t place = 0; place < 3; ++place) {
      const std::size_t way = (place + static_cast<std::size_t>(i)) % 3;
      harness::throw_if_interrupted();
      if (way != 0) allocator.start_history(kMostEvents, way == 2);
      synchronize(context.stream);
      const auto begin = Clock::now();
      workload.step(context);
      synchronize(context.stream);
      ms[way].push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
      if (way != 0) events = allocator.history().events.size();
      allocator.stop_history();
    }
  }
  std::string text = "| recording         | step_ms | cost   |\n|-------------------|--------:|-------:|\n";
  const double base = median(ms[0]);
  for (std::size_t way = 0; way < 3; ++way) {
    const double value = median(ms[way]);
    text += fmt::format("| {:<17} | {:>7.4f} | {:>5.1f}% |\n", kNames[way], value, 100 * (value / base - 1));
  }
  text += fmt::format("\nMedians of {} steps each; {} events a step.\n", steps, events);
  return print(text) ? 0 : 1;
}

int record(const CommandLine& line, const WorkloadKind& kind) {
  const OptionTable& table = line.options;
  const std::vector<std::string> outputs = snapshot_outputs(table);
  const std::int64_t warmup = table.integer("--warmup", 0, 1'000'000);
  const std::int64_t steps = table.integer("--steps", 1, 100'000);
  const auto most_events = static_cast<std::size_t>(table.integer("--max-events", 1, kMostEvents));
  WorkloadSettings settings;
  settings.seed = static_cast<std::uint64_t>(table.integer("--seed", 0, std::numeric_limits<std::int64_t>::max()));
  const std::uint64_t limit = table.has("--memory-limit") ? table.size("--memory-limit") : 0;
  settings.device = harness::read_device(table);
  std::unique_ptr<Workload> named = kind.make(table, settings);
  if (const std::string reason = named->unsupported(); !reason.empty()) {
    throw UsageError(fmt::format("nothing to record: {}", reason));
  }

  harness::install_interrupt_handler();
  const DeviceGuard guard(settings.device);
  const Stream stream(settings.device);
  CachingAllocator allocator(settings.device);
  if (limit != 0) allocator.set_memory_limit(limit);
  const Context context{stream.view(), &allocator};
  const std::unique_ptr<Workload> workload = std::move(named);  // it goes before the allocator that it has memory of

  // Where it does not fit: what lay where then is the snapshot that is asked for.
  std::optional<reports::snapshot::Snapshot> at_oom;
  allocator.on_out_of_memory([&] { at_oom = harness::take_snapshot(allocator); });
  const bool frames = table.flag("--frames");
  try {
    // What is there before the recording has its stack too.
    allocator.start_history(most_events, frames);
    workload->prepare(context);
    for (std::int64_t i = 0; i < warmup; ++i) {
      workload->step(context);
      synchronize(context.stream);
      harness::throw_if_interrupted();
    }
    allocator.stop_history();
    if (table.flag("--overhead")) return measure_overhead(*workload, context, steps);
    allocator.reset_peak();
    allocator.start_history(most_events, frames);
    for (std::int64_t i = 0; i < steps; ++i) {
      workload->step(context);
      synchronize(context.stream);
      harness::throw_if_interrupted();
    }
  } catch (const OutOfMemory& e) {
    if (at_oom) write_outputs(*at_oom, outputs);
    line.console.line(fmt::format("{}: requested {}, free {}, limit {}: out of memory{}", workload->describe(),
                                  harness::format_size(e.requested()), harness::format_size(e.free()),
                                  harness::format_size(e.limit()),
                                  at_oom ? fmt::format("; what lay where then is in {}", listed(outputs)) : ""));
    return 1;
  }
  allocator.stop_history();
  allocator.on_out_of_memory({});
  auto snapshot = harness::take_snapshot(allocator);
  const auto device = static_cast<std::size_t>(snapshot.traces.size() - 1);
  const auto replayed = reports::snapshot::replay(snapshot, device);
  const std::size_t peak = allocator.stats().peak.allocated;
  const bool whole = allocator.history().dropped == 0;
  add_facts(snapshot, *workload, peak);
  write_outputs(snapshot, outputs);
  std::string predicted;
  if (const std::size_t bytes = workload->predicted_peak(); bytes != 0) {
    predicted = fmt::format(" (predicted {}, {:+.2f}%)", harness::format_size(bytes),
                            100 * (static_cast<double>(bytes) / static_cast<double>(peak) - 1));
  }
  line.console.line(fmt::format("{}: {} events, peak {} allocated{}, {} reserved; wrote {}", workload->describe(),
                                snapshot.traces[device].size(), harness::format_size(peak), predicted,
                                harness::format_size(replayed.reserved_peak), listed(outputs)));
  if (!whole) {
    line.console.warning(
        fmt::format("only the last {} events are in the snapshot; --max-events keeps more", most_events));
  }
  WM_CHECK(!whole || replayed.peak.allocated == peak,
           fmt::format("the trace peaks at {} bytes, the allocator at {}", replayed.peak.allocated, peak));
  return 0;
}

int record_model(const CommandLine& line) {
  return record(line, kModelWorkload);
}
int record_attention(const CommandLine& line) {
  return record(line, kAttentionWorkload);
}

constexpr Command kRecordAttention = {
    "record --attention",  "-o FILE",       "one attention problem of attn_bench, warmed up, as a snapshot", 0,
    add_attention_options, record_attention};

/// e2e_bench's --attention has a value: which implementation the model uses. --attention without one asks for an
/// attention problem instead of a model, with attn_bench's options.
const Command& form(std::vector<std::string>& arguments) {
  bool attention = false;
  for (std::size_t i = 0; i < arguments.size() && !attention; ++i) {
    attention = arguments[i] == "--attention" && (i + 1 == arguments.size() || arguments[i + 1].starts_with("-"));
    if (attention) arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // An option of the other form is no typing error.
  OptionTable own("", ""), other("", "");
  add_options(own, attention ? kAttentionWorkload : kModelWorkload);
  add_options(other, attention ? kModelWorkload : kAttentionWorkload);
  const auto has = [](const OptionTable& table, std::string_view name) {
    return std::any_of(table.specs().begin(), table.specs().end(), [&](const harness::OptionSpec& spec) {
      return !spec.hidden && (spec.name == name || spec.negation == name);
    });
  };
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || has(own, name) || !has(other, name)) continue;
    throw UsageError(
        attention ? fmt::format("{}: not with --attention, which without a value asks for an attention problem; "
                                "accepted: a model's options, or attn_bench's with --attention",
                                name)
                  : fmt::format("{}: of an attention problem, not of a model; accepted: attn_bench's options with "
                                "--attention, which then has no value (--impl names the implementation)",
                                name));
  }
  return attention ? kRecordAttention : kRecord;
}

}  // namespace

const Command kRecord = {
    "record", "-o FILE",         "a model (or, with --attention, an attention problem), warmed up, as a snapshot",
    0,        add_model_options, record_model,
    form};

}  // namespace warpmeter::memsnap
