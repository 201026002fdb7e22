#pragma once

#include <string>
#include <vector>

#include "kernels/primer/operands.hpp"
#include "kernels/primer/registry.hpp"
#include "kernels/primer/verify.hpp"

namespace warpmeter::primer {

/// Problems that a kernel's tests run, in every dtype: the smallest, odd sizes, sizes at and beside the tiles' borders,
/// and those that each path of the code takes. `thorough` adds larger ones.
[[nodiscard]] std::vector<Problem> problems_of(const Kernel& kernel, bool thorough);

/// Runs on poisoned results and checks every element that the budget allows; the failure's text, "" when there is none.
[[nodiscard]] std::string run_and_check(const Context& context, const Kernel& kernel, const Problem& problem);

/// The results' bytes.
[[nodiscard]] std::vector<std::vector<std::byte>> result_bytes(const Context& context, const Kernel& kernel,
                                                               const Problem& problem);

}  // namespace warpmeter::primer
