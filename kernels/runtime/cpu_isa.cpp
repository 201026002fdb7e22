#include "kernels/runtime/cpu_isa.hpp"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace warpmeter {

std::string_view name(CpuIsa isa) noexcept {
  switch (isa) {
    case CpuIsa::generic:
      return "generic";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
  }
  return "unknown";
}

CpuIsa machine_cpu_isa() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // __builtin_cpu_supports asks the operating system's side (XCR0) too. g++ 11 and 12 do not know all names of the
  // level, so f16c, lzcnt and movbe are read from cpuid.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool basic = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0;
  const bool movbe = basic && (ecx & (1U << 22)) != 0;
  const bool f16c = basic && (ecx & (1U << 29)) != 0;
  const bool extended = __get_cpuid(0x80000001U, &eax, &ebx, &ecx, &edx) != 0;
  const bool lzcnt = extended && (ecx & (1U << 5)) != 0;
  const bool v3 = movbe && f16c && lzcnt && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (!v3) return CpuIsa::generic;
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? CpuIsa::avx512 : CpuIsa::avx2;
#else
  return CpuIsa::generic;
#endif
}

CpuIsa choose_cpu_isa(CpuIsa machine, const char* wanted) noexcept {
  if (wanted == nullptr) return machine;
  for (const CpuIsa isa : {CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512}) {
    if (name(isa) == wanted) return isa < machine ? isa : machine;
  }
  return machine;
}

CpuIsa cpu_isa() noexcept {
  static const CpuIsa chosen = choose_cpu_isa(machine_cpu_isa(), std::getenv("WARPMETER_CPU_ISA"));
  return chosen;
}

}  // namespace warpmeter
