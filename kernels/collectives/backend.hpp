#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

/// The ranks that a group is to have and where they are, known before any of them starts.
struct GroupShape {
  int world_size = 1;
  int hosts = 1;
  int most_on_a_host = 1;  ///< ranks
  /// Ranks that somebody else has started (mpirun, srun, torchrun) and that only join; else the tool starts them here.
  bool launched = false;
};

/// What users may ask of a backend. Each takes what concerns it.
struct BackendOptions {
  double timeout_s = 30;  ///< longest that a rank waits in a collective where the library can be told
  /// nccl, p2p, auto: most multiprocessors that a collective takes, so that others have the rest; 0: their own choice
  int max_blocks = 0;
  int threads = 0;        ///< shm: threads of a rank that move data; 0: the cores divided by the ranks
  std::string interface;  ///< gloo: name of a network interface, or an address of this host; empty: chosen
  /// auto: file, on rank 0's host, of the sizes at which it changes over. Without one, or without such a file, measured
  /// when the group forms; written there.
  std::string auto_table;
};

/// A rank that is to become part of a group. Borrowed: lives until Backend::create() has returned, `control` longer
/// than the communicator.
struct RankContext {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host, in order of rank
  int hosts = 1;
  std::string host_address;  ///< of this host as the others reach it; empty on one host
  /// Where the rank's arrays are: the CPU, or the GPU that is the calling thread's current one.
  Device device;
  /// The same ranks in host memory, by shared memory or TCP: for ids, addresses and handles (control.hpp has helpers).
  Communicator* control = nullptr;
  BackendOptions options;
};

/// A way of doing collectives: one object a backend, in the table below.
class Backend {
 public:
  virtual ~Backend() = default;
  /// "shm", "nccl": what options and rows call it.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual DeviceKind device_kind() const noexcept = 0;
  [[nodiscard]] virtual std::string_view description() const noexcept = 0;  ///< a line for --list

  /// Why no group of this shape can be made, with the remedy where there is one: the library is not in this build, the
  /// program is missing, more ranks on a host than GPUs. Quick, in the process that starts the ranks; creates no
  /// context on a GPU.
  [[nodiscard]] virtual std::optional<std::string> unavailable(const GroupShape& shape) const = 0;
  /// Why it cannot do this one, where others of the group can be done.
  [[nodiscard]] virtual std::optional<std::string> unsupported(CollectiveKind /*kind*/, ReduceOp /*op*/,
                                                               DType /*dtype*/) const {
    return std::nullopt;
  }
  /// Whether arrays come from Communicator::allocate() unless the user says otherwise.
  [[nodiscard]] virtual bool prefers_own_memory() const noexcept { return false; }

  /// Makes the rank's communicator. Every rank of the group calls it at the same time. Throws CollectiveError,
  /// DeviceError, OutOfMemory.
  [[nodiscard]] virtual std::unique_ptr<Communicator> create(const RankContext& context) const = 0;

  /// What the links between the ranks can carry, as busbw in GB/s (decimal), measured now; none where memory is the
  /// bound or nothing can be said. Every rank of the group calls it at the same time and gets the same.
  [[nodiscard]] virtual std::optional<double> measure_link_gbps(const RankContext& /*context*/,
                                                                Communicator& /*group*/) const {
    return std::nullopt;
  }
  /// Version of the library as it reports itself; empty without one.
  [[nodiscard]] virtual std::string library_version() const { return ""; }
};

/// Every backend that some build has, in the order of tables: those of this build, and one that is always unavailable
/// and says why in place of each other one.
[[nodiscard]] std::span<const Backend* const> backends();
/// "shm", "gloo", "mpi", "nccl", "p2p", "auto".
[[nodiscard]] std::span<const std::string_view> backend_names();
/// nullptr for a name that none has.
[[nodiscard]] const Backend* find_backend(std::string_view name);

}  // namespace warpmeter::collectives
