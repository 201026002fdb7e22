#include "kernels/attention/detail/flash_dispatch.hpp"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::attention::flash_detail {
namespace {

#define WM_FLASH_KERNELS(isa)                                                                                  \
  {                                                                                                            \
#isa, isa::flash_forward_scratch, isa::flash_forward, isa::flash_delta, isa::flash_query_gradient_scratch, \
        isa::flash_query_gradient, isa::flash_key_block_scratch, isa::flash_key_block                          \
  }
#define WM_FLASH_BF16_KERNELS(isa)                                                                                 \
  {                                                                                                                \
#isa, isa::flash_bf16_forward_scratch, isa::flash_bf16_forward, isa::flash_bf16_delta,                         \
        isa::flash_bf16_query_gradient_scratch, isa::flash_bf16_query_gradient, isa::flash_bf16_key_block_scratch, \
        isa::flash_bf16_key_block                                                                                  \
  }

constexpr Kernels kGeneric = WM_FLASH_KERNELS(generic);

#if defined(__x86_64__)
constexpr Kernels kAvx2 = WM_FLASH_KERNELS(avx2);
constexpr Kernels kAvx512 = WM_FLASH_KERNELS(avx512);
constexpr Kernels kAvx512Bf16 = WM_FLASH_BF16_KERNELS(avx512_bf16);
constexpr Kernels kAmxBf16 = WM_FLASH_BF16_KERNELS(amx_bf16);

/// Bit `bit` of CPUID leaf 7's register `index` (eax, ebx, ecx, edx).
bool has_feature(unsigned subleaf, int index, unsigned bit) {
  unsigned registers[4] = {};
  if (__get_cpuid_count(7, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]) == 0) return false;
  return (registers[index] >> bit & 1u) != 0;
}

bool machine_has_avx512_bf16() {
  return machine_cpu_isa() == CpuIsa::avx512 && has_feature(1, 0, 5);
}

/// AMX is there and Linux grants this process the tile registers, which it must ask for once.
bool machine_has_amx_bf16() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return machine_has_avx512_bf16() && has_feature(0, 3, 22) && has_feature(0, 3, 24) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

const Kernels& choose_for_bf16(const Kernels& plain) {
  if (&plain != &kAvx512) return plain;
  const char* const wanted = std::getenv("WARPMETER_CPU_ISA");
  const std::string_view word = wanted == nullptr ? "" : wanted;
  if (word == "avx512") return plain;
  if (word != "avx512_bf16" && machine_has_amx_bf16()) return kAmxBf16;
  return machine_has_avx512_bf16() ? kAvx512Bf16 : plain;
}
#endif

const Kernels& choose_plain() {
#if defined(__x86_64__)
  switch (cpu_isa()) {
    case CpuIsa::avx512:
      return kAvx512;
    case CpuIsa::avx2:
      return kAvx2;
    case CpuIsa::generic:
      break;
  }
#endif
  return kGeneric;
}

}  // namespace

const Kernels& choose_kernels(DType dtype) {
  static const Kernels& plain = choose_plain();
#if defined(__x86_64__)
  static const Kernels& bf16 = choose_for_bf16(plain);
  if (dtype == DType::bf16) return bf16;
#endif
  return plain;
}

const Kernels* find_kernels(std::string_view isa) {
  if (isa == "generic") return &kGeneric;
#if defined(__x86_64__)
  if (isa == "avx2" && machine_cpu_isa() >= CpuIsa::avx2) return &kAvx2;
  if (isa == "avx512" && machine_cpu_isa() >= CpuIsa::avx512) return &kAvx512;
  if (isa == "avx512_bf16" && machine_has_avx512_bf16()) return &kAvx512Bf16;
  if (isa == "amx_bf16" && machine_has_amx_bf16()) return &kAmxBf16;
#endif
  return nullptr;
}

}  // namespace warpmeter::attention::flash_detail
