#pragma once

#include <span>
#include <string_view>

#include "kernels/primer/kernel.hpp"

namespace warpmeter::primer {

/// Every kernel of this build, in registry.def's order.
[[nodiscard]] std::span<const Kernel> kernels();

/// Null when there is none of that name.
[[nodiscard]] const Kernel* find_kernel(std::string_view name);

}  // namespace warpmeter::primer
