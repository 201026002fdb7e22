#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/collectives/communicator.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::allreduce_bench {

/// Times one rank's calls on its device.
class Meter {
 public:
  /// Enqueues (GPU) or does (CPU) one collective.
  using Call = std::function<void(StreamView)>;
  /// Returns when all ranks have called it.
  using Together = std::function<void()>;

  struct Reading {
    std::int64_t arrival_ns = 0;  ///< on this host's steady clock
    double milliseconds = 0;      ///< of all calls together
  };

  virtual ~Meter() = default;
  /// An untimed call, complete on return.
  virtual void run(const Call& call) = 0;
  /// `calls` calls back to back, begun together with the other ranks'.
  ///
  /// CPU: the steady clock around them. GPU with the device timer: events in the stream, behind a collective barrier
  /// that the stream meets once every rank has enqueued all of it (the streams are held until then), so that no launch
  /// and no late rank is in the time. GPU with the wall timer: the steady clock around them and a synchronization.
  [[nodiscard]] virtual Reading time(const Call& call, std::int64_t calls, const Together& together) = 0;
  /// Untimed calls without which a reading would not be sound.
  [[nodiscard]] virtual std::int64_t least_warm_up() const { return 0; }
};

/// For the session's device, timer and cache state. `group` outlives it.
[[nodiscard]] std::unique_ptr<Meter> make_meter(harness::Session& session, collectives::Communicator& group);

}  // namespace warpmeter::allreduce_bench
