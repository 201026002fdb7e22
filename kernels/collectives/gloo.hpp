#pragma once

#include "kernels/collectives/backend.hpp"

namespace warpmeter::collectives {

/// Host memory through the Gloo library, over TCP. all_reduce by its rings, which combine a part of the array in an
/// order of its own and round 16-bit elements at every step; the same bits on every rank. It has no reduce_scatter that
/// takes any type: a ring here, over the library's connections.
///
/// The ranks exchange their addresses through RankContext::control: no store, nothing that a run could leave for the
/// next.
[[nodiscard]] const Backend& gloo_backend();

}  // namespace warpmeter::collectives
