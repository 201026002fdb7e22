#pragma once

#include <string>

#include "kernels/collectives/backend.hpp"
#include "tools/harness/launch/link.hpp"
#include "tools/harness/launch/worker.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness::launch {

/// What the leader tells a rank when a group forms.
struct GroupOrder {
  std::string backend;
  int rank = 0, world_size = 1, local_rank = 0, local_size = 1, hosts = 1;
  /// Where the ranks' control group is: "shm PATH"; "listen FD" for rank 0 of several hosts, "tcp PORT" at rank 0's
  /// host for the others.
  std::string control;
  std::string address;  ///< of the rank's host as the others reach it; empty on one host
  int device = 0;       ///< number of its GPU

  [[nodiscard]] std::string text() const;
  /// Throws std::runtime_error for what is no order.
  [[nodiscard]] static GroupOrder parse(const std::string& text);
};

/// A rank's life: forms groups and lets `worker` do what the leader says over `link` until it is told to quit or the
/// leader is gone. Returns the process's exit status.
///
/// A thread of its own answers "where are you", tells when a collective takes too long, and ends the process (in a
/// `process` of the rank's own) when the leader is gone, whatever the rank is stuck in.
int be_rank(Link link, Worker& worker, const Settings& settings, const collectives::BackendOptions& options,
            bool process);

}  // namespace warpmeter::harness::launch
