// The parts of a sweep that can be looked at alone; run_tool_test.py looks at the whole.
#include <gtest/gtest.h>

#include "tools/harness/memory_guard.hpp"
#include "tools/harness/provenance.hpp"
#include "tools/harness/sweep_plan.hpp"
#include "tools/harness/sweep_row.hpp"
#include "tools/harness/sweep_warnings.hpp"

namespace warpmeter::harness {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(PredictedOom, SaysWhatIsMissing) {
  Prediction prediction;
  prediction.peak_bytes = 12 * kMiB;
  EXPECT_EQ(predicted_oom(prediction, 12 * kMiB, 0), std::nullopt);
  EXPECT_EQ(predicted_oom(prediction, 8 * kMiB, 0), "predicted peak 12.0 MiB, free 8.0 MiB");
  EXPECT_EQ(predicted_oom(prediction, 8 * kMiB, 16 * kMiB), "predicted peak 12.0 MiB, free 8.0 MiB, limit 16.0 MiB");
  // What is less than the limit and still does not fit needs a word.
  EXPECT_EQ(predicted_oom(prediction, 12 * kMiB - 1, 13 * kMiB),
            "predicted peak 12.0 MiB, free 12.0 MiB, limit 13.0 MiB; memory is reserved 2.0 MiB at a time");
}

TEST(PredictedOom, ARowWhoseFirstPhaseFitsIsTried) {
  Prediction prediction;
  prediction.peak_bytes = 12 * kMiB;
  prediction.first_phase_bytes = 8 * kMiB;
  EXPECT_EQ(predicted_oom(prediction, 8 * kMiB, 0), std::nullopt);
  EXPECT_NE(predicted_oom(prediction, 8 * kMiB - 1, 0), std::nullopt);
}

TEST(Speeds, AreTimesRatesAndShares) {
  for (const char* speed : {"fwd_ms", "fwd_p95_ms", "fwd_samples_ms", "fwd_tflops", "bwd_gbps", "algo_GiBps",
                            "fwd_bound_share", "fwd_bound", "tokens_per_s", "mfu", "step_mfu", "speedup"}) {
    EXPECT_TRUE(is_speed(speed)) << speed;
  }
  for (const char* other : {"fwd_peak_mem_mib", "kernel", "max_rel_error", "check", "fwd_flops", "fwd_bytes", "fwd_n",
                            "fwd_stop", "ms", "clock_mhz"}) {
    EXPECT_FALSE(is_speed(other)) << other;
  }
}

TEST(Speeds, BecomeNull) {
  reports::Object figures;
  figures.set("kernel", "flash_sm90");
  figures.set("fwd_ms", 1.5);
  figures.set("fwd_samples_ms", std::vector<double>{1, 2});
  figures.set("fwd_peak_mem_mib", 7.0);
  remove_speeds(figures);
  EXPECT_TRUE(figures.find("fwd_ms")->is_null());
  EXPECT_TRUE(figures.find("fwd_samples_ms")->is_null());
  EXPECT_EQ(*figures.find("kernel"), reports::Value("flash_sm90"));
  EXPECT_EQ(*figures.find("fwd_peak_mem_mib"), reports::Value(7.0));
}

TEST(PredictedFlops, AreSummedOverPhases) {
  Prediction prediction;
  prediction.details.set("fwd_flops", 2e9);
  prediction.details.set("fwd_bytes", 1e12);
  prediction.details.set("bwd_flops", std::int64_t{5});
  EXPECT_DOUBLE_EQ(predicted_flops(prediction), 2e9 + 5);
}

TEST(Labels, NameWhatDiffers) {
  std::vector<reports::Row> rows(2);
  for (reports::Row& row : rows) {
    row.configuration.set("impl", "flash");
    row.configuration.set("batch", 8);
    row.configuration.set("causal", &row == &rows[1]);
    row.configuration.set("seq_len", &row == &rows[1] ? 512 : 256);
  }
  EXPECT_EQ(labels(rows), (std::vector<std::string>{"flash no-causal seq_len=256", "flash causal seq_len=512"}));
  EXPECT_TRUE(labels({}).empty());
}

TEST(MachineWarnings, SayNothingOnAQuietMachine) {
  BuildInfo build;
  build.build_type = "Release";
  Settings settings;
  EXPECT_TRUE(machine_warnings(build, {8, 8, 0, 3.0, 1}, settings).empty());
  // Load that has just ended, or a moment's work of others, is no warning.
  EXPECT_TRUE(machine_warnings(build, {8, 8, 0, 9.0, 0}, settings).empty());
  EXPECT_TRUE(machine_warnings(build, {8, 8, 0, 0.5, 7}, settings).empty());
}

TEST(MachineWarnings, SayWhatWasSeen) {
  BuildInfo build;
  Settings settings;
  const auto only = [&](const MachineState& machine) {
    const auto warnings = machine_warnings(build, machine, settings);
    return warnings.size() == 1 ? warnings[0] : std::to_string(warnings.size()) + " warnings";
  };
  const MachineState quiet = {8, 8, 0, 0, 0};
  build.build_type = "Debug";
  EXPECT_NE(only(quiet).find("debug build"), std::string::npos);
  build.sanitizers = "thread";
  EXPECT_NE(only(quiet).find("sanitizers (thread)"), std::string::npos);
  build = {};
  EXPECT_NE(only({2, 64, 0, 0, 0}).find("only 2 of this machine's 64 cores"), std::string::npos);
  EXPECT_NE(only({8, 8, 1.5, 0, 0}).find("1.5 cores' worth of time on 8 cores"), std::string::npos);
  EXPECT_NE(only({8, 8, 0, 6.25, 5}).find("load 6.2 on 8 cores"), std::string::npos);
  // A GPU's own timer does not care.
  settings.device = Device::cuda();
  EXPECT_EQ(only({2, 64, 1, 60, 60}), "0 warnings");
  settings.timer = TimerKind::wall;
  EXPECT_NE(only({2, 64, 0, 60, 60}).find("load 60.0"), std::string::npos);
}

TEST(MachineStateHere, IsPlausible) {
  const MachineState machine = machine_state();
  EXPECT_GE(machine.machine_cores, 1);
  EXPECT_GE(machine.load, 0);
  EXPECT_GE(machine.running, 0);
}

TEST(DeviceObject, OfAGpu) {
  DeviceProperties properties;
  properties.name = "NVIDIA H200";
  properties.uuid = "GPU-1";
  properties.sm = 90;
  properties.multiprocessors = 132;
  properties.memory_bytes = 1024 * kMiB;
  properties.last_level_cache_bytes = 50 * kMiB;
  properties.driver = "580.159.04";
  properties.cuda_runtime = "13.0";
  properties.max_clock_mhz = 1980;
  const reports::Object device = device_object(Device::cuda(1), properties);
  EXPECT_EQ(*device.find("name"), reports::Value("NVIDIA H200"));
  EXPECT_EQ(*device.find("sm"), reports::Value(90));
  EXPECT_EQ(*device.find("memory_mib"), reports::Value(1024.0));
  EXPECT_EQ(*device.find("cuda"), reports::Value("13.0"));
  const reports::Object* clocks = device.find("clocks")->as_object();
  ASSERT_NE(clocks, nullptr);
  EXPECT_EQ(*clocks->find("max_sm_mhz"), reports::Value(1980));
  EXPECT_TRUE(clocks->find("sm_mhz")->is_null()) << "0 is 'not known'";
}

TEST(DeviceObject, OfACpu) {
  DeviceProperties properties;
  properties.name = "AMD EPYC";
  properties.cores = 2;
  properties.isa = "avx512";
  const reports::Object device = device_object(Device::cpu(), properties);
  EXPECT_EQ(*device.find("cpu"), reports::Value("AMD EPYC"));
  EXPECT_EQ(*device.find("cores"), reports::Value(2));
  EXPECT_FALSE(device.has("uuid"));
  EXPECT_TRUE(device.find("last_level_cache_mib")->is_null());
}

}  // namespace
}  // namespace warpmeter::harness
