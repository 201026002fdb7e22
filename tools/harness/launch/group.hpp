#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/shm.hpp"
#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/launch/worker.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::harness::launch {

/// The leader's side of a group: gives orders to its ranks and watches that they are carried out.
///
/// When a rank dies, fails or gets stuck, all of them are ended and RunLost says which rank it was and why.
class Group {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// Forms the group: every rank joins the control group and makes its communicator.
  Group(std::shared_ptr<Ranks> ranks, const collectives::Backend& backend, double timeout_s, Warn warn);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Measures the row of this number. `what` is what it is called in messages.
  [[nodiscard]] Outcome measure(std::size_t index, const std::string& what);
  /// Gives every rank another order: what each answers.
  [[nodiscard]] std::vector<std::string> perform(const std::string& order, const std::string& what);

  [[nodiscard]] const std::string& library_version() const noexcept { return library_version_; }
  /// Where the tool's ranks measure it.
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

}  // namespace warpmeter::harness::launch
