#include "tools/harness/settings.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

#include <fmt/core.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::harness {
namespace {

constexpr std::array<std::string_view, 2> kTimers{"device", "wall"};
constexpr std::array<std::string_view, 2> kCacheStates{"cold", "hot"};
constexpr std::array<std::string_view, 4> kFormats{"md", "json", "jsonl", "csv"};

constexpr std::int64_t kMaxWarmup = 1'000'000;
constexpr std::int64_t kMaxSteps = 1'000'000;
constexpr double kMinDutyCycle = 0.01;
constexpr double kMinTimeSeconds = 0.001;
constexpr double kMaxTimeSeconds = 86'400;
constexpr double kMinRowTimeoutSeconds = 0.1;
constexpr double kMaxRowTimeoutSeconds = 604'800;

void add_configuration_options(OptionTable& table, std::span<const std::string_view> dtypes) {
  std::string accepted;
  for (const std::string_view dtype : dtypes) accepted.append(dtype).append(", ");
  const bool rounds = std::find(dtypes.begin(), dtypes.end(), "tf32") != dtypes.end();
  const std::string help = "Element types.";
  table.add({.name = "--dtype",
             .metavar = "NAMES",
             .default_text = "fp32",
             .accepted = accepted + "one or several with commas between",
             .help = rounds ? help + " tf32 stores fp32 and rounds the operands of matrix products." : help,
             .example = "--dtype fp32,bf16",
             .group = "Configurations",
             .row_option = true});
}

void add_device_options(OptionTable& table) {
  const std::string group = "Device and memory";
  table.add({.name = "--device",
             .metavar = "DEVICE",
             .default_text = "auto",
             .accepted = "auto, cpu, cuda, cuda:N",
             .help = "Where to measure. auto takes the first CUDA device, else the CPU, and says which.",
             .example = "--device cuda:1",
             .group = group});
  table.add({.name = "--seed",
             .metavar = "N",
             .default_text = "0",
             .accepted = "a whole number from 0",
             .help = "Seed of the random inputs: the same seed gives the same values on every device.",
             .example = "--seed 42",
             .group = group});
  table.add({.name = "--memory-limit",
             .metavar = "SIZE",
             .accepted = "a size: bytes, or KiB MiB GiB TiB (binary), KB MB GB TB (decimal)",
             .help = "Behave as on a device with this much memory: what would reserve more is an oom row.",
             .example = "--memory-limit 24GiB",
             .group = group,
             .default_note = "the device's memory"});
  table.add({.name = "--dump-on-oom",
             .metavar = "FILE",
             .accepted = "a file name that ends in .pickle or .json, in a folder that can be written to",
             .help = "When a row runs out of memory, write what lay where and what led to it as a PyTorch memory "
                     "snapshot, for memsnap or pytorch.org/memory_viz. Further rows write FILE-2, FILE-3, ..., ranks "
                     "FILE-rank0, FILE-rank1, ... Rows predicted not to fit are tried on GPUs and below a "
                     "--memory-limit.",
             .example = "--memory-limit 1GiB --dump-on-oom oom.pickle",
             .group = group,
             .output_option = true});
  table.add({.name = "--isolate",
             .help = "Run each configuration in a process of its own, so that a crash costs one row.",
             .example = "--isolate",
             .group = group});
  table.add({.name = "--row-timeout",
             .metavar = "SECONDS",
             .accepted = fmt::format("seconds from {:g} to {:g}; needs --isolate", kMinRowTimeoutSeconds,
                                     kMaxRowTimeoutSeconds),
             .help = "End a configuration's process after this long; its row says timeout.",
             .example = "--isolate --row-timeout 60",
             .group = group,
             .default_note = "none"});
}

void add_measuring_options(OptionTable& table) {
  const std::string group = "Measuring";
  table.add({.name = "--warmup",
             .metavar = "N",
             .default_text = "10",
             .accepted = fmt::format("a whole number from 0 to {}", kMaxWarmup),
             .help = "Untimed runs before the samples of each phase.",
             .example = "--warmup 3",
             .group = group});
  table.add({.name = "--steps",
             .metavar = "N",
             .accepted = fmt::format("a whole number from 1 to {}; not with --max-noise or --max-time", kMaxSteps),
             .help = "Take exactly N samples of each phase.",
             .example = "--steps 100",
             .group = group,
             .excludes = {"--max-noise", "--max-time"},
             .default_note = "as many as --max-noise and --max-time say"});
  table.add({.name = "--max-noise",
             .metavar = "FRACTION",
             .default_text = "0.5%",
             .accepted = "a fraction or percentage from 0 to 100%: 0.5% or 0.005",
             .help = "Sample until the noise (interquartile range / median) of at least 5 samples is this low.",
             .example = "--max-noise 1%",
             .group = group});
  table.add({.name = "--max-time",
             .metavar = "SECONDS",
             .default_text = "2",
             .accepted = fmt::format("seconds from {:g} to {:g}", kMinTimeSeconds, kMaxTimeSeconds),
             .help = "Stop sampling a phase after this long, noisy or not. One sample is always taken.",
             .example = "--max-time 10",
             .group = group});
  table.add({.name = "--duty-cycle",
             .metavar = "FRACTION",
             .default_text = "100%",
             .accepted = "a fraction or percentage from 1% to 100%: 25% or 0.25",
             .help = "The part of the time that samples may take. Below 100% a pause follows each, in which a device "
                     "at its power limit recovers; pauses count in --max-time.",
             .example = "--duty-cycle 25%",
             .group = group});
  table.add({.name = "--timer",
             .metavar = "NAME",
             .default_text = "device",
             .accepted = "device, wall",
             .help = "device: events on the device's own timeline, without launch overhead. wall: the host's clock "
                     "around a synchronized call. On the CPU both are the steady clock.",
             .example = "--timer wall",
             .group = group});
  table.add({.name = "--cache",
             .metavar = "STATE",
             .accepted = "cold, hot",
             .help = "cold: flush the last-level cache before every sample. hot: leave in it what the last one left.",
             .example = "--cache hot",
             .group = group,
             .default_note = "cold on GPUs, hot on the CPU"});
  table.add({.name = "--check",
             .negation = "--no-check",
             .default_text = "true",
             .help = "Compare results with the reference and put the error on the row. A wrong result shows no speed.",
             .example = "--no-check",
             .group = group});
}

void add_output_options(OptionTable& table) {
  const std::string group = "Output";
  table.add({.name = "--format",
             .metavar = "NAME",
             .default_text = "md",
             .accepted = "md, json, jsonl, csv",
             .help = "Format on stdout.",
             .example = "--format jsonl",
             .group = group,
             .output_option = true});
  table.add({.name = "--output",
             .short_name = "-o",
             .metavar = "FILE",
             .accepted = "file names that end in .md, .json, .jsonl or .csv",
             .help = "Also write to FILE, in the format of its ending, anew after every row. May be repeated.",
             .example = "-o result.json -o result.md",
             .group = group,
             .repeatable = true,
             .output_option = true});
  table.add({.name = "--columns",
             .metavar = "NAMES",
             .accepted = "column names with commas between; not with --wide",
             .help = "Exactly these columns in Markdown and CSV.",
             .example = "--columns seq_len,fwd_ms,fwd_tflops",
             .group = group,
             .output_option = true,
             .excludes = {"--wide"}});
  table.add({.name = "--wide",
             .help = "More columns in Markdown.",
             .example = "--wide",
             .group = group,
             .output_option = true});
  table.add({.name = "--samples",
             .help = "Keep every sample in JSON and JSON lines.",
             .example = "--samples -o result.json",
             .group = group,
             .output_option = true});
  table.add({.name = "--resume",
             .metavar = "FILE",
             .accepted = "a .json or .jsonl file that this tool wrote",
             .help = "Take over rows of FILE with the same configuration, device and schema instead of running them.",
             .example = "--resume result.json -o result.json",
             .group = group,
             .output_option = true});
  table.add({.name = "--dry-run",
             .help = "Print the configurations with their predicted bytes and FLOPs; measure nothing.",
             .example = "--dry-run",
             .group = group,
             .output_option = true});
}

void add_information_options(OptionTable& table) {
  const std::string group = "Presets, files and help";
  table.add({.name = "--preset",
             .metavar = "NAME",
             .accepted = "a preset's name, listed below",
             .help = "Start from a named set of options. Options given beside it win.",
             .example = "--preset notes --dtype bf16",
             .group = group});
  table.add({.name = "--config",
             .metavar = "FILE",
             .accepted = "a TOML file",
             .help = "Read options from FILE (key = value, the keys without dashes). Command line > FILE > preset.",
             .example = "--config bench.toml",
             .group = group});
  const auto action = [&](std::string name, std::string help, bool hidden = false) {
    const std::string example = name;
    table.add({.name = std::move(name),
               .help = std::move(help),
               .example = example,
               .group = group,
               .hidden = hidden,
               .action = true});
  };
  action("--print-config", "Print the options in force as TOML that --config reads back.");
  action("--list", "List what can be measured and what of it this build and machine support.");
  action("--doctor",
         "Say what this machine is, what is odd about it and what to do about it; measure what it can do at best and "
         "compare with the datasheet. As text, or as JSON with --format json.");
  action("--version", "Print the version.");
  action("--help", "Print this text.");
  action("--help-markdown", "Print the options as Markdown tables.", true);
  table.add({.name = "--isolated-child-fd",
             .metavar = "N",
             .accepted = "a file descriptor",
             .help = "This process measures one row for a parent that reads it from here.",
             .group = group,
             .hidden = true});
}

std::vector<std::string> read_outputs(const OptionTable& table) {
  std::vector<std::string> outputs = table.texts("--output");
  std::vector<std::filesystem::path> places;
  for (const std::string& output : outputs) {
    if (!reports::format_of_path(output)) throw table.error("--output", output, "unknown ending");
    std::error_code failed;
    std::filesystem::path place = std::filesystem::absolute(output, failed);
    if (!failed) place = std::filesystem::weakly_canonical(place, failed);
    if (failed) place = std::filesystem::path(output).lexically_normal();
    if (std::find(places.begin(), places.end(), place) != places.end()) {
      throw table.error("--output", output, "the same file twice");
    }
    places.push_back(std::move(place));
  }
  return outputs;
}

std::vector<std::string> read_columns(const OptionTable& table) {
  std::vector<std::string> columns;
  if (!table.has("--columns")) return columns;
  const std::string text = table.text("--columns");
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    std::string column(rest.substr(0, comma));
    if (column.empty()) throw table.error("--columns", "an item is empty");
    if (std::find(columns.begin(), columns.end(), column) != columns.end()) {
      throw table.error("--columns", fmt::format("{} stands twice", column));
    }
    columns.push_back(std::move(column));
    if (comma == std::string_view::npos) return columns;
    rest.remove_prefix(comma + 1);
  }
}

std::string read_dump_on_oom(const OptionTable& table) {
  if (!table.has("--dump-on-oom")) return "";
  std::string path = table.text("--dump-on-oom");
  if (!path.ends_with(".pickle") && !path.ends_with(".json")) throw table.error("--dump-on-oom", "unknown ending");
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (access(folder.c_str(), W_OK) != 0) {
    throw table.error("--dump-on-oom", fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  return path;
}

std::string read_resume(const OptionTable& table) {
  if (!table.has("--resume")) return "";
  std::string path = table.text("--resume");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw table.error("--resume", "is a directory");
  errno = 0;
  const std::ifstream file(path);
  if (!file) throw table.error("--resume", fmt::format("cannot be read: {}", std::strerror(errno)));
  return path;
}

}  // namespace

Device read_device(const OptionTable& table) {
  const std::string text = table.text("--device");
  try {
    return parse_device(text);
  } catch (const std::invalid_argument& refusal) {
    // "device 'cuda' is not there (no driver); accepted are auto and cpu": the option and the value are said already.
    std::string_view problem = refusal.what();
    std::string_view accepted = "auto, cpu, cuda, cuda:N";
    const std::string prefix = fmt::format("device '{}' ", text);
    if (problem.starts_with(prefix)) problem.remove_prefix(prefix.size());
    constexpr std::string_view kAccepted = "; accepted are ";
    if (const std::size_t at = problem.find(kAccepted); at != std::string_view::npos) {
      accepted = problem.substr(at + kAccepted.size());
      problem = problem.substr(0, at);
    }
    throw UsageError("--device", text, problem, accepted);
  }
}

void add_shared_options(OptionTable& table, std::span<const std::string_view> dtypes) {
  if (!dtypes.empty()) add_configuration_options(table, dtypes);
  add_device_options(table);
  add_measuring_options(table);
  add_output_options(table);
  add_information_options(table);
}

Settings read_settings(const OptionTable& table, std::span<const std::string_view> dtypes) {
  Settings settings;
  settings.preset = table.preset();
  for (const std::string& word : dtypes.empty() ? std::vector<std::string>() : table.words("--dtype", dtypes)) {
    const auto dtype = parse_dtype(word);
    WM_CHECK(dtype.has_value(), "the option's words are the types' names");
    settings.dtypes.push_back(*dtype);
  }
  settings.seed = static_cast<std::uint64_t>(table.integer("--seed", 0, std::numeric_limits<std::int64_t>::max()));
  if (table.has("--memory-limit")) settings.memory_limit = table.size("--memory-limit");
  settings.isolate = table.flag("--isolate");
  if (table.has("--row-timeout")) {
    settings.row_timeout_s = table.number("--row-timeout", kMinRowTimeoutSeconds, kMaxRowTimeoutSeconds);
  }

  settings.warmup = table.integer("--warmup", 0, kMaxWarmup);
  if (table.has("--steps")) settings.steps = table.integer("--steps", 1, kMaxSteps);
  settings.max_noise = table.fraction("--max-noise");
  settings.max_time_s = table.number("--max-time", kMinTimeSeconds, kMaxTimeSeconds);
  settings.duty_cycle = table.fraction("--duty-cycle");
  if (settings.duty_cycle < kMinDutyCycle) throw table.error("--duty-cycle", "below 1%");
  settings.timer = table.word("--timer", kTimers) == "wall" ? TimerKind::wall : TimerKind::device;
  std::optional<CacheState> cache;
  if (table.has("--cache")) {
    cache = table.word("--cache", kCacheStates) == "cold" ? CacheState::cold : CacheState::hot;
  }
  settings.check = table.flag("--check");

  settings.format = reports::parse_format(table.word("--format", kFormats)).value();
  settings.outputs = read_outputs(table);
  settings.columns = read_columns(table);
  settings.wide = table.flag("--wide");
  settings.samples = table.flag("--samples");
  settings.resume = read_resume(table);
  settings.dry_run = table.flag("--dry-run");
  settings.dump_on_oom = read_dump_on_oom(table);
  if (table.has("--isolated-child-fd")) {
    settings.isolated_child_fd =
        static_cast<int>(table.integer("--isolated-child-fd", 0, std::numeric_limits<int>::max()));
  }

  if (settings.row_timeout_s && !settings.isolate) {
    throw table.error("--row-timeout", "without --isolate there is no process to end; add --isolate");
  }
  if (settings.samples) {
    const auto keeps_samples = [](reports::Format format) {
      return format == reports::Format::json || format == reports::Format::jsonl;
    };
    bool kept = keeps_samples(settings.format);
    for (const std::string& output : settings.outputs) kept |= keeps_samples(*reports::format_of_path(output));
    if (!kept) {
      throw UsageError("--samples", "", "only JSON keeps samples",
                       "beside -o FILE.json, -o FILE.jsonl, --format json or --format jsonl");
    }
  }

  // Last, so that mistakes in the options are told first: asking for the device may wake a driver.
  settings.device_was_auto = table.text("--device") == "auto";
  settings.device = read_device(table);
  settings.cache = cache.value_or(settings.device.is_cuda() ? CacheState::cold : CacheState::hot);
  return settings;
}

reports::Object describe(const Settings& settings) {
  reports::Object object;
  object.set("device", name(settings.device));
  reports::Value::Array dtypes;
  for (const DType dtype : settings.dtypes) dtypes.emplace_back(name(dtype));
  if (!dtypes.empty()) object.set("dtype", std::move(dtypes));
  object.set("preset", settings.preset.empty() ? reports::Value() : reports::Value(settings.preset));
  object.set("seed", settings.seed);
  object.set("warmup", settings.warmup);
  object.set("steps", settings.steps);
  // With a fixed number of samples neither bound is in force.
  object.set("max_noise", settings.steps ? reports::Value() : reports::Value(settings.max_noise));
  object.set("max_time_s", settings.steps ? reports::Value() : reports::Value(settings.max_time_s));
  object.set("duty_cycle", settings.duty_cycle);
  object.set("timer", settings.timer == TimerKind::device ? "device" : "wall");
  object.set("cache", settings.cache == CacheState::cold ? "cold" : "hot");
  // Files that lack it are of when a GPU's cold samples had to write back what the flush itself had left in the L2.
  const bool flushes_clean = settings.cache == CacheState::cold && settings.device.is_cuda();
  object.set("cache_flush", flushes_clean ? reports::Value("clean") : reports::Value());
  object.set("memory_limit_bytes",
             settings.memory_limit == 0 ? reports::Value() : reports::Value(settings.memory_limit));
  object.set("isolate", settings.isolate);
  object.set("row_timeout_s", settings.row_timeout_s);
  object.set("check", settings.check);
  return object;
}

}  // namespace warpmeter::harness
