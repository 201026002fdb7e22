#include "tools/harness/settings.hpp"

#include <gtest/gtest.h>

#include "tests/tools/harness/option_test_table.hpp"

namespace warpmeter::harness {
namespace {

Settings settings_of(std::vector<std::string> arguments) {
  OptionTable table = make_fake_table();
  arguments.insert(arguments.begin(), {"--device", "cpu"});
  parse(table, arguments);
  return read_settings(table);
}

std::string settings_error(const std::vector<std::string>& arguments) {
  return usage_error_of([&] { (void)settings_of(arguments); });
}

std::string device_error(const std::string& device) {
  OptionTable table = make_fake_table();
  return usage_error_of([&] {
    parse(table, {"--device", device});
    (void)read_settings(table);
  });
}

TEST(Settings, Defaults) {
  const Settings settings = settings_of({});
  EXPECT_EQ(settings.device, Device::cpu());
  EXPECT_FALSE(settings.device_was_auto);
  EXPECT_EQ(settings.dtypes, (std::vector<DType>{DType::fp32}));
  EXPECT_EQ(settings.seed, 0u);
  EXPECT_EQ(settings.warmup, 10);
  EXPECT_EQ(settings.steps, std::nullopt);
  EXPECT_EQ(settings.max_noise, 0.005);
  EXPECT_EQ(settings.duty_cycle, 1);
  EXPECT_EQ(settings.max_time_s, 2.0);
  EXPECT_EQ(settings.timer, TimerKind::device);
  EXPECT_EQ(settings.cache, CacheState::hot);
  EXPECT_EQ(settings.memory_limit, 0u);
  EXPECT_FALSE(settings.isolate);
  EXPECT_EQ(settings.row_timeout_s, std::nullopt);
  EXPECT_TRUE(settings.check);
  EXPECT_EQ(settings.format, reports::Format::md);
  EXPECT_TRUE(settings.outputs.empty());
  EXPECT_TRUE(settings.columns.empty());
  EXPECT_FALSE(settings.wide);
  EXPECT_FALSE(settings.samples);
  EXPECT_EQ(settings.resume, "");
  EXPECT_FALSE(settings.dry_run);
  EXPECT_EQ(settings.isolated_child_fd, -1);
  EXPECT_EQ(settings.preset, "");
}

TEST(Settings, EveryOptionArrives) {
  const TemporaryFile resume("{}", "old.json");
  const Settings settings = settings_of({"--dtype",
                                         "bf16,fp16,tf32",
                                         "--seed",
                                         "9223372036854775807",
                                         "--warmup",
                                         "0",
                                         "--steps",
                                         "1",
                                         "--timer",
                                         "wall",
                                         "--cache",
                                         "cold",
                                         "--memory-limit",
                                         "24GiB",
                                         "--isolate",
                                         "--row-timeout",
                                         "0.5",
                                         "--no-check",
                                         "--format",
                                         "jsonl",
                                         "-o",
                                         "a.md",
                                         "-o",
                                         "b.csv",
                                         "--columns",
                                         "seq_len,fwd_ms",
                                         "--samples",
                                         "--resume",
                                         resume.path(),
                                         "--dry-run",
                                         "--preset",
                                         "notes",
                                         "--isolated-child-fd",
                                         "7"});
  EXPECT_EQ(settings.dtypes, (std::vector<DType>{DType::bf16, DType::fp16, DType::tf32}));
  EXPECT_EQ(settings.seed, 9223372036854775807u);
  EXPECT_EQ(settings.warmup, 0);
  EXPECT_EQ(settings.steps, 1);
  EXPECT_EQ(settings.timer, TimerKind::wall);
  EXPECT_EQ(settings.cache, CacheState::cold);
  EXPECT_EQ(settings.memory_limit, std::uint64_t{24} << 30);
  EXPECT_TRUE(settings.isolate);
  EXPECT_EQ(settings.row_timeout_s, 0.5);
  EXPECT_FALSE(settings.check);
  EXPECT_EQ(settings.format, reports::Format::jsonl);
  EXPECT_EQ(settings.outputs, (std::vector<std::string>{"a.md", "b.csv"}));
  EXPECT_EQ(settings.columns, (std::vector<std::string>{"seq_len", "fwd_ms"}));
  EXPECT_TRUE(settings.samples);
  EXPECT_EQ(settings.resume, resume.path());
  EXPECT_TRUE(settings.dry_run);
  EXPECT_EQ(settings.isolated_child_fd, 7);
  EXPECT_EQ(settings.preset, "notes");
  const Settings adaptive = settings_of({"--max-noise", "0.01", "--max-time", "0.25", "--duty-cycle", "25%", "--wide"});
  EXPECT_EQ(adaptive.max_noise, 0.01);
  EXPECT_EQ(adaptive.duty_cycle, 0.25);
  EXPECT_EQ(adaptive.max_time_s, 0.25);
  EXPECT_TRUE(adaptive.wide);
}

TEST(Settings, AToolSaysWhatTypesItTakes) {
  constexpr std::array<std::string_view, 2> kWords{"fp32", "int32"};
  OptionTable table("tool", "A tool.");
  add_shared_options(table, kWords);
  const char* const argv[] = {"tool", "--dtype", "int32", "--device", "cpu"};
  table.parse(5, argv);
  EXPECT_EQ(read_settings(table, kWords).dtypes, (std::vector<DType>{DType::int32}));
  EXPECT_EQ(usage_error_of([&] { (void)read_settings(table); }).find("--dtype 'int32': unknown"), 0u);
}

TEST(Settings, AToolWithoutTypesHasNoSuchOption) {
  OptionTable table("tool", "A tool.");
  add_shared_options(table, {});
  const char* const argv[] = {"tool", "--device", "cpu"};
  table.parse(3, argv);
  EXPECT_TRUE(read_settings(table, {}).dtypes.empty());
  EXPECT_FALSE(describe(read_settings(table, {})).has("dtype"));
  const char* const typed[] = {"tool", "--dtype", "bf16"};
  EXPECT_THROW(table.parse(3, typed), UsageError);
}

TEST(Settings, BadValuesNameOptionValueAndWhatIsAccepted) {
  const std::string steps = "; accepted: a whole number from 1 to 1000000; not with --max-noise or --max-time";
  EXPECT_EQ(settings_error({"--steps", "0"}), "--steps '0': below 1" + steps);
  EXPECT_EQ(settings_error({"--steps", "-5"}), "--steps '-5': negative" + steps);
  EXPECT_EQ(settings_error({"--steps", "1e99"}), "--steps '1e99': not a whole number" + steps);
  EXPECT_EQ(settings_error({"--steps", "1000001"}), "--steps '1000001': above 1000000" + steps);
  EXPECT_EQ(
      settings_error({"--dtype", "fp23"}),
      "--dtype 'fp23': unknown (did you mean fp32?); accepted: fp32, tf32, bf16, fp16, one or several with commas "
      "between");
  EXPECT_EQ(settings_error({"--dtype", "double"}),
            "--dtype 'double': unknown; accepted: fp32, tf32, bf16, fp16, one or several with commas between");
  EXPECT_EQ(settings_error({"--seed", "-1"}), "--seed '-1': negative; accepted: a whole number from 0");
  EXPECT_EQ(settings_error({"--warmup", "many"}),
            "--warmup 'many': not a whole number; accepted: a whole number from 0 to 1000000");
  EXPECT_EQ(settings_error({"--max-noise", "5"}),
            "--max-noise '5': above 1 (did you mean 5%?); accepted: a fraction or percentage from 0 to 100%: 0.5% or "
            "0.005");
  EXPECT_EQ(settings_error({"--max-time", "0"}), "--max-time '0': below 0.001; accepted: seconds from 0.001 to 86400");
  EXPECT_EQ(settings_error({"--timer", "cuda"}), "--timer 'cuda': unknown; accepted: device, wall");
  EXPECT_EQ(settings_error({"--cache", "warm"}), "--cache 'warm': unknown; accepted: cold, hot");
  EXPECT_EQ(settings_error({"--format", "xml"}), "--format 'xml': unknown; accepted: md, json, jsonl, csv");
  EXPECT_EQ(settings_error({"--memory-limit", "24G"}),
            "--memory-limit '24G': unknown unit 'G' (did you mean GiB or GB?); accepted: a size: bytes, or KiB MiB GiB "
            "TiB (binary), KB MB GB TB (decimal)");
  EXPECT_EQ(settings_error({"--isolated-child-fd", "x"}),
            "--isolated-child-fd 'x': not a whole number; accepted: a file descriptor");
}

TEST(Settings, ContradictionsNameBothOptions) {
  EXPECT_EQ(
      settings_error({"--row-timeout", "5"}),
      "--row-timeout '5': without --isolate there is no process to end; add --isolate; accepted: seconds from 0.1 "
      "to 604800; needs --isolate");
  EXPECT_EQ(settings_error({"--duty-cycle", "0"}),
            "--duty-cycle '0': below 1%; accepted: a fraction or percentage from 1% to 100%: 25% or 0.25");
  EXPECT_EQ(settings_error({"--steps", "5", "--max-noise", "1%"}),
            "--steps 5 and --max-noise 1%: contradict each other; accepted: one of them");
  EXPECT_EQ(settings_error({"--columns", "a", "--wide"}),
            "--columns a and --wide: contradict each other; accepted: one of them");
  EXPECT_EQ(
      settings_error({"--samples"}),
      "--samples: only JSON keeps samples; accepted: beside -o FILE.json, -o FILE.jsonl, --format json or --format "
      "jsonl");
  EXPECT_EQ(settings_error({"--samples", "-o", "a.csv", "-o", "b.json"}), "(accepted)");
  EXPECT_EQ(settings_error({"--samples", "--format", "json"}), "(accepted)");
}

TEST(Settings, Outputs) {
  const std::string accepted = "; accepted: file names that end in .md, .json, .jsonl or .csv";
  EXPECT_EQ(settings_error({"-o", "a.txt"}), "--output 'a.txt': unknown ending" + accepted);
  EXPECT_EQ(settings_error({"-o", "a.md", "-o", "json"}), "--output 'json': unknown ending" + accepted);
  EXPECT_EQ(settings_error({"-o", "-"}), "--output '-': unknown ending" + accepted);
  EXPECT_EQ(settings_error({"-o", "a.md", "-o", "a.md"}), "--output 'a.md': the same file twice" + accepted);
  EXPECT_EQ(settings_error({"-o", "a.md", "-o", "./x/../a.md"}),
            "--output './x/../a.md': the same file twice" + accepted);
  EXPECT_EQ(settings_error({"-o", "a.md", "-o", "a.json"}), "(accepted)");
}

TEST(Settings, Columns) {
  const std::string accepted = "; accepted: column names with commas between; not with --wide";
  EXPECT_EQ(settings_error({"--columns", "a,,b"}), "--columns 'a,,b': an item is empty" + accepted);
  EXPECT_EQ(settings_error({"--columns", "a,b,a"}), "--columns 'a,b,a': a stands twice" + accepted);
}

TEST(Settings, ResumeNeedsAFile) {
  const std::string accepted = "; accepted: a .json or .jsonl file that this tool wrote";
  EXPECT_EQ(settings_error({"--resume", "/nonexistent/a.json"}),
            "--resume '/nonexistent/a.json': cannot be read: No such file or directory" + accepted);
  EXPECT_EQ(settings_error({"--resume", "/"}), "--resume '/': is a directory" + accepted);
}

TEST(Settings, Devices) {
  const std::string unknown = device_error("gpu");
  EXPECT_EQ(unknown.substr(0, unknown.find(';')), "--device 'gpu': is not known");
  EXPECT_NE(unknown.find("; accepted: auto"), std::string::npos) << unknown;
  const std::string far = device_error("cuda:1000");
  EXPECT_EQ(far.find("--device 'cuda:1000': is not there"), 0u) << far;
  EXPECT_NE(far.find("; accepted: auto"), std::string::npos) << far;
  if (cuda_device_count() == 0) {
    EXPECT_EQ(device_error("cuda"),
              "--device 'cuda': is not there (" + cuda_unavailable_reason() + "); accepted: auto and cpu");
  }
}

TEST(Settings, AutoTakesWhatIsThere) {
  OptionTable table = make_fake_table();
  parse(table, {});
  const Settings settings = read_settings(table);
  EXPECT_TRUE(settings.device_was_auto);
  EXPECT_EQ(settings.device.is_cuda(), cuda_device_count() > 0);
  EXPECT_EQ(settings.cache, settings.device.is_cuda() ? CacheState::cold : CacheState::hot);
}

TEST(Settings, MistakesInOptionsAreToldBeforeTheDeviceIsAskedFor) {
  OptionTable table = make_fake_table();
  parse(table, {"--device", "cuda:1000", "--steps", "0"});
  EXPECT_EQ(usage_error_of([&] { (void)read_settings(table); }).find("--steps '0'"), 0u);
}

TEST(Settings, DescribeSaysWhatWasInForce) {
  const reports::Object adaptive = describe(settings_of({"--dtype", "fp32,bf16", "--preset", "notes"}));
  EXPECT_EQ(*adaptive.find("device"), reports::Value("cpu"));
  EXPECT_EQ(*adaptive.find("dtype"), reports::Value(reports::Value::Array{"fp32", "bf16"}));
  EXPECT_EQ(*adaptive.find("preset"), reports::Value("notes"));
  EXPECT_TRUE(adaptive.find("steps")->is_null());
  EXPECT_EQ(*adaptive.find("max_noise"), reports::Value(0.005));
  EXPECT_EQ(*adaptive.find("max_time_s"), reports::Value(2.0));
  EXPECT_EQ(*adaptive.find("duty_cycle"), reports::Value(1.0));
  EXPECT_EQ(*adaptive.find("cache"), reports::Value("hot"));
  ASSERT_TRUE(adaptive.has("cache_flush"));
  EXPECT_TRUE(adaptive.find("cache_flush")->is_null());
  EXPECT_EQ(*adaptive.find("timer"), reports::Value("device"));
  EXPECT_TRUE(adaptive.find("memory_limit_bytes")->is_null());
  EXPECT_EQ(*adaptive.find("check"), reports::Value(true));

  const reports::Object fixed = describe(settings_of({"--steps", "7", "--memory-limit", "1GiB"}));
  EXPECT_EQ(*fixed.find("steps"), reports::Value(7));
  EXPECT_TRUE(fixed.find("max_noise")->is_null());
  EXPECT_TRUE(fixed.find("max_time_s")->is_null());
  EXPECT_TRUE(fixed.find("preset")->is_null());
  EXPECT_EQ(*fixed.find("memory_limit_bytes"), reports::Value(std::int64_t{1} << 30));
}

// Cold samples of a GPU are not those of files that were written before it left them nothing to write back.
TEST(Settings, DescribeSaysHowAGpusCacheWasFlushed) {
  Settings settings;
  for (const Device device : {Device::cpu(), Device::cuda(), Device::cuda(1)}) {
    for (const CacheState cache : {CacheState::hot, CacheState::cold}) {
      settings.device = device;
      settings.cache = cache;
      const reports::Object described = describe(settings);
      const bool flushed = device.is_cuda() && cache == CacheState::cold;
      EXPECT_EQ(*described.find("cache_flush"), flushed ? reports::Value("clean") : reports::Value()) << name(device);
    }
  }
}

}  // namespace
}  // namespace warpmeter::harness
