#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <sstream>

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

/// Options of a model, which attention does not have. They are parsed, so that what is missing can be said.
constexpr std::array<std::string_view, 8> kModelOptions = {"--size",   "--context", "--vocab",     "--d-ff",
                                                           "--layers", "--mode",    "--precision", "--structure"};

void add_record_options(OptionTable& table) {
  table.add({.name = "--attention",
             .help = "Record one configuration of attn_bench, given by the options below.",
             .example = "--attention",
             .group = "What is recorded"});
  for (const std::string_view name : kModelOptions) {
    table.add({.name = std::string(name), .metavar = "VALUE", .group = "What is recorded", .hidden = true});
  }
  add_attention_options(table);
  OptionTable shared("memsnap", "");
  harness::add_shared_options(shared);
  for (harness::OptionSpec spec : shared.specs()) {
    const auto is = [&](std::string_view name) { return spec.name == name; };
    if (is("--dtype")) {
      spec.group = "Attention (--attention)";
      spec.row_option = false;
    } else if (is("--warmup")) {
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
  table.add_examples({
      "memsnap record --attention --impl naive --seq-len 4096 -o naive.pickle",
      "memsnap record --attention --impl flash --heads 16 --d-model 1024 --dtype bf16 -o flash.pickle",
  });
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
  return outputs;
}

/// The workload that the options name. A model's is unavailable until the suite's model can be recorded.
std::unique_ptr<Workload> make_workload(const OptionTable& table, const WorkloadSettings& settings) {
  std::string_view of_model;
  for (const std::string_view name : kModelOptions) {
    if (of_model.empty() && table.given(name)) of_model = name;
  }
  if (table.flag("--attention")) {
    if (!of_model.empty()) {
      throw UsageError(
          fmt::format("--attention and {}: one is of an attention problem, the other of a model; "
                      "accepted: one of them",
                      of_model));
    }
    return make_attention_workload(table, settings);
  }
  if (!of_model.empty()) {
    throw UsageError(
        fmt::format("{}: unavailable: this build has no model to record; accepted: --attention", of_model));
  }
  throw UsageError("nothing to record; accepted: --attention and attn_bench's options");
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

int run_record(const CommandLine& line) {
  const OptionTable& table = line.options;
  const std::vector<std::string> outputs = snapshot_outputs(table);
  const std::int64_t warmup = table.integer("--warmup", 0, 1'000'000);
  const std::int64_t steps = table.integer("--steps", 1, 100'000);
  const auto most_events = static_cast<std::size_t>(table.integer("--max-events", 1, kMostEvents));
  WorkloadSettings settings;
  settings.dtype = parse_dtype(table.word("--dtype", harness::kDTypeWords)).value();
  settings.seed = static_cast<std::uint64_t>(table.integer("--seed", 0, std::numeric_limits<std::int64_t>::max()));
  const std::uint64_t limit = table.has("--memory-limit") ? table.size("--memory-limit") : 0;
  settings.device = harness::read_device(table);
  std::unique_ptr<Workload> named = make_workload(table, settings);
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
  const auto snapshot = harness::take_snapshot(allocator);
  const auto device = static_cast<std::size_t>(snapshot.traces.size() - 1);
  const auto replayed = reports::snapshot::replay(snapshot, device);
  const std::size_t peak = allocator.stats().peak.allocated;
  const bool whole = allocator.history().dropped == 0;
  write_outputs(snapshot, outputs);
  line.console.line(fmt::format("{}: {} events, peak {} allocated, {} reserved; wrote {}", workload->describe(),
                                snapshot.traces[device].size(), harness::format_size(peak),
                                harness::format_size(replayed.reserved_peak), listed(outputs)));
  if (!whole) {
    line.console.warning(
        fmt::format("only the last {} events are in the snapshot; --max-events keeps more", most_events));
  }
  WM_CHECK(!whole || replayed.peak.allocated == peak,
           fmt::format("the trace peaks at {} bytes, the allocator at {}", replayed.peak.allocated, peak));
  return 0;
}

}  // namespace

const Command kRecord = {"record", "-o FILE",          "one configuration of attention, warmed up, as a snapshot",
                         0,        add_record_options, run_record};

}  // namespace warpmeter::memsnap
