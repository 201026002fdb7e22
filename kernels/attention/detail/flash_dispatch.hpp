#pragma once

#include <memory>

#include "kernels/attention/detail/flash_kernels.hpp"
#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention::flash_detail {

/// The kernels for operands of a type: decided once, for the machine that runs and what WARPMETER_CPU_ISA allows.
/// Beyond the runtime's levels the variable also takes "avx512_bf16": AVX512_BF16's products for bf16, but not AMX.
[[nodiscard]] const Kernels& choose_kernels(DType dtype);

/// The kernels of one level whatever the variable says, null where this machine cannot run them: for tests. `isa` is
/// "generic", "avx2", "avx512", "avx512_bf16" or "amx_bf16" (the last two: bf16 operands only).
[[nodiscard]] const Kernels* find_kernels(std::string_view isa);

using ChooseKernels = const Kernels& (*)(DType dtype);
/// flash or flash_two_pass on other kernels than the registered ones: for tests.
[[nodiscard]] std::unique_ptr<Implementation> make_flash_cpu(bool two_pass, ChooseKernels choose);

}  // namespace warpmeter::attention::flash_detail
