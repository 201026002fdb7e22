#pragma once

#include <optional>
#include <string>

#include "kernels/runtime/device.hpp"
#include "reports/model.hpp"

namespace warpmeter::harness {

/// What this program was built from and how. Fixed at build time.
struct BuildInfo {
  std::string project;        ///< "0.1.0"
  std::string git_sha;        ///< 40 hexadecimal digits; empty when it was not built in a git checkout
  std::optional<bool> dirty;  ///< tracked files differed from that commit; none without git
  std::string build_type;     ///< "Release"
  std::string compiler;       ///< "GNU 12.2.0"
  std::string sanitizers;     ///< "address,undefined", or empty
  std::string cuda;           ///< "13.0, architectures 90a-real", or empty
};
[[nodiscard]] const BuildInfo& build_info();

/// The document's `version`: project, git_sha, dirty, build_type, compiler; null for what is not known.
[[nodiscard]] reports::Object version_object(const BuildInfo& built = build_info());

/// The document's `libraries`: version and configuration of each that is linked, as it reports itself at run time.
[[nodiscard]] reports::Object libraries_object();

/// The document's `device`: name, uuid, sm, multiprocessors, memory_mib, l2_mib, driver, cuda, clocks of a GPU; cpu,
/// cores, isa, memory_mib, last_level_cache_mib of a CPU.
[[nodiscard]] reports::Object device_object(Device device, const DeviceProperties& properties);

/// Now, in UTC: "2026-01-31T12:00:00Z".
[[nodiscard]] std::string utc_now();

/// What --version prints.
[[nodiscard]] std::string version_text(const std::string& program);

namespace detail {
/// CUDA runtime and cuBLAS, in builds that have them.
void add_cuda_libraries(reports::Object& libraries);
}  // namespace detail

}  // namespace warpmeter::harness
