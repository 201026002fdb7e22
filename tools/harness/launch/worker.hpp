#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/collectives/communicator.hpp"
#include "reports/model.hpp"
#include "tools/harness/launch/call_watch.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::harness::launch {

/// What came of a row, the same on every rank but for the figures, which rank 0 has.
struct Outcome {
  reports::Status status = reports::Status::ok;
  std::string reason;
  reports::Object figures;
};

/// A rank at work: what it needs of its group.
struct RankAtWork {
  collectives::Communicator& group;    ///< of the backend that is measured
  collectives::Communicator& control;  ///< for everything else
  Session& session;
  CallWatch& watch;
  bool one_host = true;  ///< the ranks' clocks are one
  int local_size = 1;    ///< ranks on this one's host
};

/// What a tool's ranks do when they are told to: the same object on every rank, made from the same options.
class Worker {
 public:
  virtual ~Worker() = default;
  /// Measures the row of this number, together with the other ranks. Throws what breaks the group.
  [[nodiscard]] virtual Outcome measure(const RankAtWork& rank, std::size_t index) = 0;
  /// Something else that the leader may ask of its ranks, with its answer.
  [[nodiscard]] virtual std::string perform(const RankAtWork& rank, const std::string& order);
  /// Whether the links between the ranks are measured when a group forms.
  [[nodiscard]] virtual bool measures_links() const { return false; }
};

/// What went wrong on any rank, that of the lowest first; ok when nothing did. Every rank calls it and gets the same.
struct Vote {
  reports::Status status = reports::Status::ok;
  std::string reason;
};
[[nodiscard]] Vote vote(collectives::Communicator& control, const Vote& mine);

}  // namespace warpmeter::harness::launch
