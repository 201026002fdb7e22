#pragma once

#include <cstdint>
#include <string_view>

namespace warpmeter {

/// Instruction set levels that code is compiled for (warpmeter_isa_variants), narrowest first.
/// generic: the compiler's base level; avx2: x86-64-v3; avx512: x86-64-v4.
enum class CpuIsa : std::uint8_t { generic, avx2, avx512 };

/// "generic", "avx2", "avx512".
[[nodiscard]] std::string_view name(CpuIsa isa) noexcept;

/// The widest level that this machine runs, or what WARPMETER_CPU_ISA names when that is narrower (for testing the
/// other paths; a wider level or an unknown word is ignored). Decided once, at the first call.
[[nodiscard]] CpuIsa cpu_isa() noexcept;

/// What cpu_isa() decides: `wanted` is the variable's text, null when it is not set.
[[nodiscard]] CpuIsa choose_cpu_isa(CpuIsa machine, const char* wanted) noexcept;

/// The widest level that this machine runs.
[[nodiscard]] CpuIsa machine_cpu_isa() noexcept;

}  // namespace warpmeter
