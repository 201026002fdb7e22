#pragma once

#include <cstdint>
#include <memory>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

namespace detail {
class StreamOrder;
}

/// What NCCL is told of the memory that allocate() gives.
enum class NcclRegistration : std::uint8_t {
  none,        ///< nothing: as most programs use it
  registered,  ///< ncclMemAlloc and ncclCommRegister: transfers may skip NCCL's own buffers
  /// A window of all ranks (NCCL 2.27): kernels that reach the peers' arrays. allocate() is then collective, and a
  /// reduce_scatter whose parts are no multiple of 16 bytes is refused (unsupported): NCCL gives wrong results.
  symmetric,
};

/// How all_gather_v goes, in one launch of NCCL's either way.
enum class NcclPieces : std::uint8_t {
  broadcasts,  ///< of each piece from its rank
  sends,       ///< of the own piece to every other rank, and theirs received
};

struct NcclOptions {
  /// Longest that a collective takes on the GPU, or its call on the host. Then the communicator is aborted.
  double timeout_s = 30;
  NcclRegistration registration = NcclRegistration::none;
  int max_blocks = 0;  ///< most blocks, so multiprocessors, that a collective takes (NCCL's maxCTAs). 0: NCCL's choice
  NcclPieces pieces = NcclPieces::broadcasts;
  /// NVLink multicast. Off unless asked for: NCCL_NVLS_ENABLE=0 is set where the environment does not say otherwise.
  bool nvls = false;
  /// Shared with another communicator whose calls are to be in one order with these. Null: its own.
  std::shared_ptr<detail::StreamOrder> order;
};

/// The `nccl` backend: the NCCL library, a GPU a rank, any number of hosts. The id travels by the control group.
///
/// Where it differs from ReduceOp: NCCL's own order of ranks and roundings on the way; avg of int32 wraps as the sum
/// does. Reductions at addresses that are no multiple of the element's size are refused (unsupported).
///
/// Two ranks on one GPU are refused before NCCL could hang. A peer's end, an error of the network or the timeout abort
/// the communicator: Work::wait() and later calls throw it.
/// Throws CollectiveError, DeviceError.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl(const RankContext& context, const NcclOptions& options);

/// The entry of the table of backends.
[[nodiscard]] const Backend& nccl_backend();

}  // namespace warpmeter::collectives
