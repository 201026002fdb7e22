#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/collectives/auto_table.hpp"
#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

struct AutoOptions {
  double timeout_s = 30;
  int max_blocks = 0;              ///< most multiprocessors that a collective takes; 0: the backends' own choice
  std::optional<AutoTable> table;  ///< none: measured now, some 500 ms, with memory of allocate()
  std::size_t measure_up_to = std::size_t{256} << 20;  ///< bytes of the largest array measured
};

/// The `auto` backend: the faster of p2p and nccl, by kind and size. With one of them alone (no NCCL, several hosts) it
/// is that one. allocate() gives p2p's memory, and is collective. Arrays of other memory are slower by p2p, which the
/// table does not know.
[[nodiscard]] std::unique_ptr<Communicator> make_auto(const RankContext& context, const AutoOptions& options);

/// The table in use by a communicator that make_auto() made.
[[nodiscard]] const AutoTable& table_of(const Communicator& communicator);

/// The entry of the table of backends.
[[nodiscard]] const Backend& auto_backend();

}  // namespace warpmeter::collectives
