#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/shm.hpp"
#include "tools/allreduce_bench/measurement.hpp"
#include "tools/allreduce_bench/ranks.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::allreduce_bench {

/// The leader's side of a group: gives orders to its ranks and watches that they are carried out.
///
/// When a rank dies, fails or gets stuck, all of them are ended and harness::RunLost says which rank it was and why.
class Group {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// Forms the group: every rank joins the control group and makes its communicator.
  Group(std::shared_ptr<Ranks> ranks, const collectives::Backend& backend, double timeout_s, Warn warn);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Measures the configuration of this number.
  [[nodiscard]] Outcome measure(std::size_t index, const std::string& what);
  /// What each rank says of its part in the demo.
  [[nodiscard]] std::vector<std::string> demo(std::uint64_t seed);

  [[nodiscard]] const std::string& library_version() const noexcept { return library_version_; }
  [[nodiscard]] std::optional<double> link_gbps() const noexcept { return link_gbps_; }

 private:
  struct Trouble;

  /// Gives every rank its order and waits until all have carried it out; what they say of it.
  std::vector<std::string> order(Say say, const std::function<std::string(int)>& text, const std::string& what);
  [[noreturn]] void give_up(Trouble& trouble, const std::string& what);
  void take_messages(int rank, std::vector<std::optional<std::string>>& done, Trouble& trouble);

  std::shared_ptr<Ranks> ranks_;
  double timeout_s_;
  Warn warn_;
  std::optional<collectives::ShmWorld> control_;
  std::string library_version_;
  std::optional<double> link_gbps_;
  bool lost_ = false;
};

}  // namespace warpmeter::allreduce_bench
