#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/ceilings/detail/cached_matmul_kernel.hpp"
#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::ceilings::detail {

/// What multiplies bf16 without widening it.
enum class Bf16Products : std::uint8_t { none, avx512_bf16, amx_bf16 };

/// What this machine has.
[[nodiscard]] Bf16Products machine_bf16_products() noexcept;
/// What is used: `level` is the instruction set in use, `wanted` WARPMETER_CPU_ISA's text, null when it is not set. A
/// level under avx512 has none, nor has "avx512"; "avx512_bf16" leaves AMX out. The attention kernels choose alike.
[[nodiscard]] Bf16Products choose_bf16_products(Bf16Products machine, CpuIsa level, const char* wanted) noexcept;

/// The kernel for a path on this CPU: decided once. Null for half where bf16 is not multiplied natively, and for tf32.
[[nodiscard]] const CachedMatmulKernel* choose_cached_matmul(ComputePath path) noexcept;
/// The kernel of one instruction set, null where this machine cannot run it: for tests.
[[nodiscard]] const CachedMatmulKernel* find_cached_matmul(std::string_view isa) noexcept;

/// `kernel` on all threads, about `call_flops` of each in a call.
[[nodiscard]] std::unique_ptr<CachedMatmulWorkload> make_cached_matmul(const Context& context,
                                                                       const CachedMatmulKernel& kernel,
                                                                       double call_flops);

}  // namespace warpmeter::ceilings::detail
