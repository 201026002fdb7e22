#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

enum class Severity : std::uint8_t {
  broken,   ///< measuring on the device asked for fails
  warning,  ///< figures measured now are not to be trusted, or not what the machine can do
  note,     ///< worth knowing when figures are compared
};
[[nodiscard]] std::string_view name(Severity severity) noexcept;

struct Finding {
  Severity severity = Severity::note;
  std::string id;       ///< stable: "gpu_throttled"
  std::string subject;  ///< "GPU 0", "host", "build"
  std::string seen;     ///< what is odd, and why it matters
  std::string remedy;   ///< what to do about it
};

/// Every odd thing about a machine, the worst first. Pure: the same facts give the same findings.
[[nodiscard]] std::vector<Finding> judge(const Facts& facts);

/// The slowdowns among ThrottleReason bits in words, comma-separated; empty for none and for an idle clock. The
/// software power cap is one only where `power_cap` says so: every large GPU meets it under full load.
[[nodiscard]] std::string throttle_text(std::uint64_t reasons, bool power_cap);

/// Warnings about the GPU with `uuid` as it is now, for the start of a sweep.
[[nodiscard]] std::vector<Finding> judge_gpu(const GpuFacts& gpu, const std::string& subject);

}  // namespace warpmeter::harness::doctor
