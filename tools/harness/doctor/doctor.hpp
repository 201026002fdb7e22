#pragma once

#include <string>
#include <vector>

#include "tools/harness/doctor/facts.hpp"
#include "tools/harness/doctor/findings.hpp"
#include "tools/harness/doctor/nvml.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness::doctor {

/// `--doctor`: reads the machine, measures the ceilings of the device in force, says what is odd and what to do about
/// it, as text or with --format json as JSON. Returns 0 with findings too, 1 when measuring on that device fails.
/// A device that is not there is the first finding, and the others say why.
/// Throws UsageError for options that do not parse and for --output and formats it has not; Interrupted.
[[nodiscard]] int run_doctor(const std::string& tool, const OptionTable& table, int argc, const char* const* argv);

/// What CUDA says about the GPUs: which index each has, and all that there is where the management library is silent.
void add_cuda_devices(GpuSystem& system, const Nvml& nvml, CudaFacts& cuda);

/// Warnings about a GPU (by CUDA's UUID) at the start of a sweep: throttled, busy, shared. Empty without the library.
[[nodiscard]] std::vector<Finding> gpu_warnings(const Nvml& nvml, const std::string& uuid, const std::string& name);

#if defined(WARPMETER_CUDA) && WARPMETER_CUDA
void ask_cuda_for_peers(GpuSystem& system);
#endif

}  // namespace warpmeter::harness::doctor
