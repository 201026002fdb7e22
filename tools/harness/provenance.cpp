#include "tools/harness/provenance.hpp"

#include <ctime>

#include <cblas.h>
#include <fmt/core.h>

#include "kernels/runtime/annotate.hpp"

namespace warpmeter::harness {
namespace {

using reports::Object;
using reports::Value;

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

/// Null for what the system did not tell.
Value known(const std::string& text) {
  return text.empty() ? Value() : Value(text);
}
Value known(int number) {
  return number == 0 ? Value() : Value(number);
}
Value known_mib(std::size_t bytes) {
  return bytes == 0 ? Value() : Value(mib(bytes));
}

std::string text_of(const Value& value) {
  if (const auto* text = value.as_string()) return *text;
  if (const auto* whole = value.as_int()) return fmt::format("{}", *whole);
  if (const auto* flag = value.as_bool()) return *flag ? "yes" : "no";
  return "unknown";
}

}  // namespace

Object version_object(const BuildInfo& built) {
  Object version;
  version.set("project", built.project);
  version.set("git_sha", known(built.git_sha));
  version.set("dirty", Value(built.dirty));
  version.set("build_type", known(built.build_type));
  version.set("compiler", known(built.compiler));
  if (!built.sanitizers.empty()) version.set("sanitizers", built.sanitizers);
  return version;
}

Object libraries_object() {
  Object libraries;
  // "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY SkylakeX MAX_THREADS=64"; the core's name is the kernel set in use.
  libraries.set("openblas", fmt::format("{} (core {})", openblas_get_config(), openblas_get_corename()));
  libraries.set("nvtx", nvtx_enabled());
  detail::add_cuda_libraries(libraries);
  return libraries;
}

Object device_object(Device device, const DeviceProperties& properties) {
  Object object;
  if (device.is_cuda()) {
    object.set("name", properties.name);
    object.set("uuid", known(properties.uuid));
    object.set("index", device.index);
    object.set("sm", properties.sm);
    object.set("multiprocessors", properties.multiprocessors);
    object.set("memory_mib", mib(properties.memory_bytes));
    object.set("l2_mib", known_mib(properties.last_level_cache_bytes));
    object.set("driver", known(properties.driver));
    object.set("cuda", known(properties.cuda_runtime));
    Object clocks;
    clocks.set("sm_mhz", known(properties.clock_mhz));
    clocks.set("max_sm_mhz", known(properties.max_clock_mhz));
    clocks.set("memory_mhz", known(properties.memory_clock_mhz));
    object.set("clocks", clocks);
  } else {
    object.set("cpu", properties.name);
    object.set("cores", properties.cores);
    object.set("isa", known(properties.isa));
    object.set("memory_mib", mib(properties.memory_bytes));
    object.set("last_level_cache_mib", known_mib(properties.last_level_cache_bytes));
  }
  return object;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[sizeof "2026-01-31T12:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string version_text(const std::string& program) {
  const BuildInfo& built = build_info();
  std::string git = "not built in a git checkout";
  if (!built.git_sha.empty()) git = built.git_sha + (built.dirty.value_or(false) ? ", with changes" : "");
  std::string text = fmt::format("{} (warpmeter {})\ngit: {}\nbuild: {}{}{}\ncompiler: {}\nCUDA: {}\n", program,
                                 built.project, git, built.build_type, built.sanitizers.empty() ? "" : ", sanitizers ",
                                 built.sanitizers, built.compiler, built.cuda.empty() ? "not built in" : built.cuda);
  const Object libraries = libraries_object();
  for (const auto& [name, value] : libraries.fields()) text += fmt::format("{}: {}\n", name, text_of(value));
  return text;
}

#if !WARPMETER_CUDA
namespace detail {
void add_cuda_libraries(Object&) {}
}  // namespace detail
#endif

}  // namespace warpmeter::harness
