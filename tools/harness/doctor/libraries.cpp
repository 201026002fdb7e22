#include "tools/harness/doctor/libraries.hpp"

#include <array>
#include <cstdlib>

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include "kernels/runtime/annotate.hpp"
#include "tools/harness/provenance.hpp"

namespace warpmeter::harness::doctor {
namespace {

std::optional<std::string> text_of(const reports::Object& object, const char* field) {
  const reports::Value* const value = object.find(field);
  if (value == nullptr || value->as_string() == nullptr) return std::nullopt;
  return *value->as_string();
}

/// "9.13.0" of 91300 and the like.
std::string version_of(void* library) {
  if (void* const symbol = dlsym(library, "cudnnGetVersion")) {
    const std::size_t v = reinterpret_cast<std::size_t (*)()>(symbol)();
    return fmt::format("{}.{}.{} ", v / 10000, v % 10000 / 100, v % 100);
  }
  int v = 0;
  if (void* const symbol = dlsym(library, "ncclGetVersion")) {
    if (reinterpret_cast<int (*)(int*)>(symbol)(&v) == 0) {
      return fmt::format("{}.{}.{} ", v / 10000, v % 10000 / 100, v % 100);
    }
  }
  if (void* const symbol = dlsym(library, "cuDriverGetVersion")) {
    if (reinterpret_cast<int (*)(int*)>(symbol)(&v) == 0) return fmt::format("CUDA {}.{} ", v / 1000, v % 1000 / 10);
  }
  return "";
}

}  // namespace

std::optional<std::string> find_library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.empty()) continue;
    void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    std::string text = version_of(library);
    const link_map* map = nullptr;
    const bool placed = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0';
    text += placed ? map->l_name : name;
    dlclose(library);
    return text;
  }
  return std::nullopt;
}

std::vector<LibraryFacts> read_libraries(const LibraryFinder& find) {
  const reports::Object linked = libraries_object();
  const bool cuda = !build_info().cuda.empty();
  const std::string no_cuda = "this build has no CUDA";
  std::vector<LibraryFacts> libraries;

  libraries.push_back({"OpenBLAS", "linked", "", text_of(linked, "openblas"), "CPU matrix products", true});
  libraries.push_back({"CUDA runtime", cuda ? fmt::format("linked in, toolkit {}", build_info().cuda) : "",
                       cuda ? "" : no_cuda, text_of(linked, "cuda_runtime"), "CUDA devices", true});
  libraries.push_back({"cuBLAS", cuda ? "linked" : "", cuda ? "" : no_cuda, text_of(linked, "cublas"),
                       "matrix products on GPUs", true});
  // What comes with the driver is no part of a build: a program with CUDA starts without it.
  libraries.push_back({"CUDA driver", "", "comes with the driver", find({"libcuda.so.1"}), "CUDA devices", false});
  libraries.push_back(
      {"NVML", "", "comes with the driver", find({"libnvidia-ml.so.1"}), "clocks and throttling", false});
  libraries.push_back({"cuDNN", WM_HAS_CUDNN ? WM_CUDNN_SAYS : "", WM_HAS_CUDNN ? "" : WM_CUDNN_SAYS,
                       find({"libcudnn.so.9", WM_CUDNN_FILE}), "cudnn rows", false});
  libraries.push_back({"NCCL", WM_HAS_NCCL ? "found" : "", WM_HAS_NCCL ? "" : "no tool of this build uses it",
                       find({"libnccl.so.2"}), "NCCL collectives", false});
  libraries.push_back({"MPI", WM_HAS_MPI ? "found" : "", WM_HAS_MPI ? "" : "no tool of this build uses it",
                       find({"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"}), "MPI collectives", false});
  libraries.push_back({"Gloo", WM_HAS_GLOO ? "found" : "", WM_HAS_GLOO ? "" : "no tool of this build uses it",
                       find({"libgloo.so.0", "libgloo.so"}), "Gloo collectives", false});
  // Version 3 is headers alone; a profiler puts the rest into the process.
  LibraryFacts nvtx{"NVTX (nvToolsExt)",
                    nvtx_enabled() ? "headers of version 3" : "",
                    nvtx_enabled() ? "" : "its headers were not found: ranges are no-ops",
                    std::nullopt,
                    "ranges in profiles",
                    false};
  if (nvtx_enabled()) nvtx.loaded = "by a profiler, when one is there";
  libraries.push_back(std::move(nvtx));
  return libraries;
}

std::map<std::string, std::string> read_environment() {
  constexpr std::array<const char*, 11> kNames = {
      "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",      "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
      "OMP_NUM_THREADS",      "OMP_PROC_BIND",          "OMP_PLACES",           "OMP_WAIT_POLICY",
      "OPENBLAS_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES", "WARPMETER_CPU_ISA"};
  std::map<std::string, std::string> environment;
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name)) environment.emplace(name, value);
  }
  return environment;
}

}  // namespace warpmeter::harness::doctor
