// Every finding from a machine that has that one thing wrong, and none from a machine that is well.
#include "tools/harness/doctor/findings.hpp"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "tests/tools/harness/doctor/healthy.hpp"

namespace warpmeter::harness::doctor {
namespace {

std::string ids(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += (text.empty() ? "" : " ") + finding.id;
  return text;
}

struct Odd {
  const char* id;
  Severity severity;
  std::function<void(Facts&)> spoil;
  const char* seen;    ///< a piece of what is said
  const char* remedy;  ///< a piece of the advice
};

void expect_only(const Facts& facts, const Odd& odd) {
  const std::vector<Finding> found = judge(facts);
  ASSERT_EQ(ids(found), odd.id);
  const Finding& finding = found.front();
  EXPECT_EQ(name(finding.severity), name(odd.severity)) << odd.id;
  EXPECT_NE(finding.seen.find(odd.seen), std::string::npos) << odd.id << ": " << finding.seen;
  EXPECT_NE(finding.remedy.find(odd.remedy), std::string::npos) << odd.id << ": " << finding.remedy;
  EXPECT_EQ((finding.seen + finding.remedy).find('\n'), std::string::npos) << odd.id;
  EXPECT_FALSE(finding.subject.empty()) << odd.id;
}

TEST(Findings, NoneOnHealthyMachines) {
  EXPECT_EQ(ids(judge(healthy_gpu_machine())), "");
  EXPECT_EQ(ids(judge(healthy_cpu_machine())), "");
}

TEST(Findings, OfABuild) {
  const Odd odds[] = {
      {"debug_build", Severity::warning, [](Facts& f) { f.build.build_type = "Debug"; }, "debug build",
       "release preset"},
      {"sanitizers", Severity::warning, [](Facts& f) { f.build.sanitizers = "thread"; }, "(thread)", "release preset"},
      {"dirty_build", Severity::note, [](Facts& f) { f.build.dirty = true; }, "tree with changes", "commit"},
      {"library_missing", Severity::warning,
       [](Facts& f) { f.libraries[1] = {"cuDNN", "frontend 1.14 found", "", std::nullopt, "cudnn rows", false}; },
       "no cudnn rows", "LD_LIBRARY_PATH"},
      {"library_missing", Severity::broken, [](Facts& f) { f.libraries[0].loaded.reset(); }, "OpenBLAS",
       "LD_LIBRARY_PATH"},
  };
  for (const Odd& odd : odds) {
    Facts facts = healthy_cpu_machine();
    odd.spoil(facts);
    expect_only(facts, odd);
  }
}

TEST(Findings, OfAHost) {
  const Odd odds[] = {
      {"affinity", Severity::warning,
       [](Facts& f) {
         f.host.allowed = {0, 1, 3}, f.host.usable_cores = 3;
       },
       "only 3 of 8 CPUs may be used (affinity: 0-1,3)", "taskset"},
      {"cpu_quota", Severity::warning, [](Facts& f) { f.host.cpu_quota = 2.5; }, "2.5 CPUs' worth of time on 8",
       "OMP_NUM_THREADS=2"},
      {"cpus_offline", Severity::note, [](Facts& f) { f.host.present.push_back(8); }, "1 of 9 CPUs", "online"},
      {"threads_many", Severity::warning, [](Facts& f) { f.environment["OMP_NUM_THREADS"] = "16"; }, "=16 on 8",
       "OMP_NUM_THREADS=8"},
      {"threads_few", Severity::note, [](Facts& f) { f.environment["OMP_NUM_THREADS"] = "2"; }, "2 of 8", "unset"},
      {"smt", Severity::note, [](Facts& f) { f.host.smt = true, f.host.allowed_cores = 4; }, "threads of 4 cores",
       "OMP_NUM_THREADS=4"},
      {"numa", Severity::note,
       [](Facts& f) {
         f.host.numa_nodes = {0, 1};
       },
       "2 NUMA nodes", "OMP_PROC_BIND"},
      {"governor", Severity::warning, [](Facts& f) { f.host.governors = {"powersave"}; }, "'powersave'", "cpupower"},
      {"turbo_off", Severity::note, [](Facts& f) { f.host.turbo = false; }, "turbo is off", "firmware"},
      {"isa_narrowed", Severity::warning, [](Facts& f) { f.host.isa = "avx2"; }, "to avx2; this machine runs avx512",
       "unset WARPMETER_CPU_ISA"},
      {"isa_generic", Severity::note, [](Facts& f) { f.host.isa = f.host.machine_isa = "generic"; }, "no AVX2", ""},
      {"huge_pages", Severity::note, [](Facts& f) { f.host.huge_pages = "never"; }, "huge pages are off", "madvise"},
      {"load", Severity::warning, [](Facts& f) { f.host.load = 6, f.host.running = 5; }, "load 6.0 on 8", "top"},
      {"memory_low", Severity::warning, [](Facts& f) { f.host.available_bytes = std::size_t{4} << 30; },
       "4.0 of 128.0 GiB", "--memory-limit"},
  };
  for (const Odd& odd : odds) {
    Facts facts = healthy_cpu_machine();
    odd.spoil(facts);
    expect_only(facts, odd);
  }
  // Load that has ended, a moment's work of others, a bound team of threads, SMT with a thread a core: nothing odd.
  Facts facts = healthy_cpu_machine();
  facts.host.load = 6;
  facts.host.numa_nodes = {0, 1};
  facts.environment["OMP_PROC_BIND"] = "close";
  EXPECT_EQ(ids(judge(facts)), "");
  facts.host.load = 0.1;
  facts.host.running = 7;
  EXPECT_EQ(ids(judge(facts)), "");
}

TEST(Findings, OfAHostMatterLessWhereAGpuIsMeasured) {
  Facts facts = healthy_gpu_machine();
  facts.host.governors = {"powersave"};
  facts.host.cpu_quota = 2;
  facts.host.numa_nodes = {0, 1};
  facts.host.huge_pages = "never";
  const auto found = judge(facts);
  EXPECT_EQ(ids(found), "cpu_quota governor");
  for (const Finding& finding : found) EXPECT_EQ(finding.severity, Severity::note) << finding.id;
}

TEST(Findings, OfAGpu) {
  const Odd odds[] = {
      {"gpu_shared", Severity::warning,
       [](Facts& f) {
         f.gpu_system.gpus[0].other_processes = {{42, 1500.0}, {43, std::nullopt}};
       },
       "2 other compute processes are here: pid 42 (1500 MiB), pid 43", "--device cuda:N"},
      {"gpu_busy", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].utilization_percent = 55; }, "busy 55%",
       "nvidia-smi"},
      {"gpu_throttled", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].throttle = kThrottleHardwareThermal; },
       "hardware thermal slowdown", "cool"},
      {"gpu_throttled", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].throttle = kThrottlePowerBrake; },
       "power brake", "power supply"},
      {"gpu_throttled", Severity::warning,
       [](Facts& f) { f.gpu_system.gpus[0].throttle = kThrottleApplicationClocks | kThrottleIdle; },
       "application clocks or a locked clock", "-rgc"},
      {"gpu_throttled_under_load", Severity::warning,
       [](Facts& f) { f.gpu_system.gpus[0].load_throttle = kThrottleSoftwareThermal; },
       "while the ceilings were measured: software thermal slowdown", "cool"},
      {"gpu_power_capped", Severity::note,
       [](Facts& f) {
         f.gpu_system.gpus[0].load_throttle = kThrottleSoftwarePowerCap;
         f.gpu_system.gpus[0].load_clock_mhz = 1755;
       },
       "the power limit of 700 W (SM clock 1755 MHz)", "-lgc"},
      {"gpu_memory_held", Severity::note, [](Facts& f) { f.gpu_system.gpus[0].memory_used_mib = 20480; },
       "20.0 of 140.4 GiB are held", "container"},
      {"gpu_power_limit", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].power_limit_w = 400; },
       "400 W, 700 W by default", "nvidia-smi -i 0 -pl 700"},
      {"gpu_hot", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].temperature_c = 88; }, "88 degrees",
       "airflow"},
      {"gpu_ecc_errors", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].uncorrected_ecc_errors = 3; },
       "3 uncorrectable", "replaced"},
      {"gpu_ecc_pending", Severity::note, [](Facts& f) { f.gpu_system.gpus[0].ecc_pending = false; },
       "ECC is on and will be off", "reboot"},
      {"gpu_mig", Severity::note, [](Facts& f) { f.gpu_system.gpus[0].mig = true; }, "slices", "-mig 0"},
      {"gpu_prohibited", Severity::broken, [](Facts& f) { f.gpu_system.gpus[0].compute_mode = 2; }, "Prohibited",
       "nvidia-smi -i 0 -c DEFAULT"},
      {"gpu_prohibited", Severity::warning, [](Facts& f) { f.gpu_system.gpus[1].compute_mode = 2; }, "Prohibited",
       "nvidia-smi -i 1 -c DEFAULT"},
      {"gpu_exclusive", Severity::note, [](Facts& f) { f.gpu_system.gpus[0].compute_mode = 3; }, "exclusive",
       "-c DEFAULT"},
      {"gpu_pcie_narrow", Severity::warning, [](Facts& f) { f.gpu_system.gpus[0].pcie_width = 4; }, "x4", "risers"},
      {"gpu_persistence", Severity::note, [](Facts& f) { f.gpu_system.gpus[0].persistence = false; }, "persistence",
       "-pm 1"},
      {"no_peer_access", Severity::note,
       [](Facts& f) {
         f.gpu_system.peers = {{Peer::self, Peer::none}, {Peer::none, Peer::self}};
       },
       "1 pair without peer access (0-1)", "topo"},
      {"launch_blocking", Severity::warning, [](Facts& f) { f.environment["CUDA_LAUNCH_BLOCKING"] = "1"; },
       "CUDA_LAUNCH_BLOCKING", "unset"},
      {"visible_devices", Severity::note,
       [](Facts& f) {
         f.environment["CUDA_VISIBLE_DEVICES"] = "1";
         f.cuda.devices = 1;
         f.gpu_system.gpus[0].cuda_index.reset();
         f.gpu_system.gpus[1].cuda_index = 0;
         // What goes on on a GPU that is hidden from this program is not its business.
         f.gpu_system.gpus[0].utilization_percent = 99;
       },
       "'1': 1 of 2 GPUs", "unset"},
      {"driver_old", Severity::warning, [](Facts& f) { f.gpu_system.driver_cuda = 12060; }, "12.6 at most", "update"},
      {"no_nvml", Severity::note,
       [](Facts& f) {
         f.gpu_system = {};
         f.gpu_system.failure = "libnvidia-ml.so.1: cannot open";
         GpuFacts known;  // what CUDA says, which is all there is
         known.cuda_index = 0;
         f.gpu_system.gpus = {known};
       },
       "libnvidia-ml.so.1: cannot open", "utility"},
      {"driver_mismatch", Severity::broken,
       [](Facts& f) { f.gpu_system.version_mismatch = true, f.gpu_system.failure = "Driver/library version mismatch"; },
       "different versions", "reboot"},
  };
  for (const Odd& odd : odds) {
    Facts facts = healthy_gpu_machine();
    odd.spoil(facts);
    expect_only(facts, odd);
  }
}

TEST(Findings, EccCostsOnGddrAlone) {
  Facts facts = healthy_gpu_machine();
  for (GpuFacts& gpu : facts.gpu_system.gpus) gpu.ecc = gpu.ecc_pending = false;
  EXPECT_EQ(ids(judge(facts)), "");
  facts.gpu_system.gpus[0].name = "NVIDIA L40S";
  facts.gpu_system.gpus[0].ecc = facts.gpu_system.gpus[0].ecc_pending = true;
  EXPECT_EQ(ids(judge(facts)), "gpu_ecc_costs");
}

TEST(Findings, OfCeilings) {
  const Odd odds[] = {
      {"ceiling_low", Severity::warning, [](Facts& f) { f.ceilings[3].measured = 3600; },
       "read_gbps is 3600 GB/s, 75% of the datasheet's 4800", "findings above"},
      {"ceiling_low", Severity::warning, [](Facts& f) { f.ceilings[1].measured = 500; }, "500 TFLOP/s, 51%", "again"},
      {"ceiling_high", Severity::note, [](Facts& f) { f.ceilings[0].measured = 80; }, "119%", "variant"},
      {"ceiling_no_room", Severity::warning,
       [](Facts& f) { f.ceilings[2].measured = std::numeric_limits<double>::quiet_NaN(); },
       "copy_gbps was not measured", "free memory"},
      {"ceilings_failed", Severity::broken,
       [](Facts& f) { f.ceilings.clear(), f.ceilings_failure = "no kernel image is available"; }, "no kernel image",
       "compute-sanitizer"},
  };
  for (const Odd& odd : odds) {
    Facts facts = healthy_gpu_machine();
    odd.spoil(facts);
    expect_only(facts, odd);
  }
  // The limits: 80% of a bandwidth, 60% of a GPU's matmul, 50% of a CPU's.
  Facts facts = healthy_gpu_machine();
  facts.ceilings = {{"read_gbps", 801, 1000.0}, {"matmul_fp32_tflops", 61, 100.0}};
  EXPECT_EQ(ids(judge(facts)), "");
  facts.ceilings = {{"read_gbps", 799, 1000.0}, {"matmul_fp32_tflops", 59, 100.0}};
  EXPECT_EQ(ids(judge(facts)), "ceiling_low ceiling_low");
  facts = healthy_cpu_machine();
  facts.ceilings = {{"matmul_fp32_tflops", 51, 100.0}};
  EXPECT_EQ(ids(judge(facts)), "");
  facts.ceilings = {{"matmul_fp32_tflops", 49, 100.0}};
  EXPECT_EQ(ids(judge(facts)), "ceiling_low");
  EXPECT_EQ(judge(facts).front().severity, Severity::warning);
  facts.host.virtual_machine = true;
  EXPECT_EQ(judge(facts).front().severity, Severity::note);
  EXPECT_NE(judge(facts).front().remedy.find("virtual machine"), std::string::npos);
}

TEST(Findings, ASliceIsNotHeldAgainstTheWholeGpu) {
  Facts facts = healthy_gpu_machine();
  facts.gpu_system.gpus[0].mig = true;
  facts.ceilings[3].measured = 600;
  EXPECT_EQ(ids(judge(facts)), "gpu_mig");
}

TEST(Findings, OfAGpuThatThisProgramCannotUse) {
  // A GPU and a program without CUDA: a warning, and the reason once the GPU was asked for.
  Facts facts = healthy_cpu_machine();
  facts.host.nvidia_device = true;
  EXPECT_EQ(ids(judge(facts)), "no_cuda_build");
  EXPECT_EQ(judge(facts).front().severity, Severity::warning);
  facts.refused_device = "device 'cuda' is not there (built without CUDA); accepted are auto and cpu";
  EXPECT_EQ(ids(judge(facts)), "device_refused no_cuda_build");
  EXPECT_EQ(judge(facts)[1].severity, Severity::broken);

  // Measuring on the CPU goes on where the driver is in pieces.
  facts = healthy_cpu_machine();
  facts.gpu_system.version_mismatch = true;
  EXPECT_EQ(ids(judge(facts)), "driver_mismatch");
  EXPECT_EQ(judge(facts).front().severity, Severity::warning);

  // A driver that does not work, hidden GPUs, no GPU at all.
  facts = healthy_cpu_machine();
  facts.cuda = {true, 13000, 0, "CUDA driver version is insufficient"};
  EXPECT_EQ(ids(judge(facts)), "");  // a laptop without a GPU is nothing odd
  facts.host.nvidia_device = true;
  EXPECT_EQ(ids(judge(facts)), "cuda_unavailable");
  facts.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(ids(judge(facts)), "gpus_hidden");
  facts.host.nvidia_device = false;
  facts.environment.clear();
  facts.refused_device = "device 'cuda' is not there";
  EXPECT_EQ(ids(judge(facts)), "device_refused no_gpu");
}

TEST(Findings, TheWorstComeFirst) {
  Facts facts = healthy_gpu_machine();
  facts.build.dirty = true;
  facts.host.governors = {"powersave"};
  facts.gpu_system.gpus[0].utilization_percent = 90;
  facts.ceilings_failure = "out of luck";
  EXPECT_EQ(ids(judge(facts)), "ceilings_failed gpu_busy dirty_build governor");
}

TEST(Throttling, IdleAndAFullLoadsPowerCapAreNone) {
  EXPECT_EQ(throttle_text(0, true), "");
  EXPECT_EQ(throttle_text(kThrottleIdle, true), "");
  EXPECT_EQ(throttle_text(kThrottleSoftwarePowerCap, false), "");
  EXPECT_EQ(throttle_text(kThrottleSoftwarePowerCap, true), "software power cap");
  EXPECT_EQ(throttle_text(kThrottleHardwareSlowdown | kThrottleHardwareThermal, false),
            "hardware thermal slowdown, hardware slowdown");
}

TEST(SweepWarnings, AreThoseAboutUseAndClocks) {
  GpuFacts gpu;
  gpu.temperature_c = 90;  // not asked for at the start of a sweep
  EXPECT_EQ(ids(judge_gpu(gpu, "cuda:0")), "");
  gpu.throttle = kThrottleHardwareSlowdown;
  gpu.utilization_percent = 12;
  gpu.other_processes = {{1, std::nullopt}};
  const auto found = judge_gpu(gpu, "cuda:0");
  EXPECT_EQ(ids(found), "gpu_shared gpu_busy gpu_throttled");
  EXPECT_EQ(found.front().subject, "cuda:0");
  gpu = {};
  gpu.utilization_percent = 9;
  EXPECT_EQ(ids(judge_gpu(gpu, "cuda:0")), "");
}

}  // namespace
}  // namespace warpmeter::harness::doctor
