#include "kernels/primer/registry.hpp"

#include <vector>

#include "kernels/runtime/cpu_isa.hpp"

// The parts of every kernel's file (see kernel_file.hpp), each compiled apart. WM_PRIMER_REGISTRY is registry.def, or
// what a build with further kernels has in its place.
#define WM_PRIMER_KERNEL(kernel)                          \
  namespace warpmeter::primer::kernel {                   \
  namespace host {                                        \
  Kernel describe();                                      \
  }                                                       \
  namespace generic {                                     \
  void run(const Problem&, const Arguments&);             \
  }                                                       \
  namespace avx2 {                                        \
  void run(const Problem&, const Arguments&);             \
  }                                                       \
  namespace avx512 {                                      \
  void run(const Problem&, const Arguments&);             \
  }                                                       \
  namespace cuda {                                        \
  void run(const Problem&, const Arguments&, StreamView); \
  }                                                       \
  }
#include WM_PRIMER_REGISTRY
#undef WM_PRIMER_KERNEL

namespace warpmeter::primer {
namespace {

using CpuRun = void (*)(const Problem&, const Arguments&);

#if defined(__x86_64__)
#define WM_PRIMER_CPU(kernel) pick(kernel::generic::run, kernel::avx2::run, kernel::avx512::run)
CpuRun pick(CpuRun generic, CpuRun avx2, CpuRun avx512) {
  return cpu_isa() == CpuIsa::avx512 ? avx512 : cpu_isa() == CpuIsa::avx2 ? avx2 : generic;
}
#else
#define WM_PRIMER_CPU(kernel) kernel::generic::run
#endif

#if WARPMETER_CUDA
#define WM_PRIMER_CUDA(kernel) kernel::cuda::run
#else
#define WM_PRIMER_CUDA(kernel) nullptr
#endif

Kernel complete(std::string_view name, Kernel kernel, CpuRun cpu,
                void (*cuda)(const Problem&, const Arguments&, StreamView)) {
  kernel.name = name;
  kernel.cpu = cpu;
  kernel.cuda = cuda;
  return kernel;
}

}  // namespace

std::span<const Kernel> kernels() {
#define WM_PRIMER_KERNEL(kernel) \
  complete(#kernel, kernel::host::describe(), WM_PRIMER_CPU(kernel), WM_PRIMER_CUDA(kernel)),
  static const std::vector<Kernel> table = {
#include WM_PRIMER_REGISTRY
  };
#undef WM_PRIMER_KERNEL
  return table;
}

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace warpmeter::primer
