#include "tools/harness/launch/rank.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/shm.hpp"
#include "kernels/collectives/tcp_control.hpp"
#include "kernels/runtime/check.hpp"
#include "tools/harness/isolation_channel.hpp"
#include "tools/harness/oom_dump.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::harness::launch {
namespace {

using collectives::CollectiveError;
using collectives::Communicator;

constexpr int kFailed = 1;
constexpr int kLeaderGone = 3;
/// The backend's own words, where it has a time-out, come first.
constexpr double kGraceSeconds = 1;

/// The other end of the link: takes messages off it, answers what must be answered at once.
class Ear {
 public:
  Ear(Link& link, const CallWatch& watch, double timeout_s, bool process)
      : link_(link), watch_(watch), timeout_s_(timeout_s), process_(process), thread_([this] { listen(); }) {}
  ~Ear() {
    closing_.store(true);
    thread_.join();
  }
  Ear(const Ear&) = delete;
  Ear& operator=(const Ear&) = delete;

  /// The next order; nullopt when the leader is gone.
  std::optional<Message> order() {
    std::unique_lock lock(mutex_);
    come_.wait(lock, [this] { return gone_ || !orders_.empty(); });
    if (orders_.empty()) return std::nullopt;
    Message message = std::move(orders_.front());
    orders_.pop_front();
    return message;
  }

 private:
  static constexpr int kLookMilliseconds = 50;

  void listen() {
    bool told = false;
    while (!closing_.load()) {
      pollfd ready = {link_.fd(), POLLIN, 0};
      const bool open = poll(&ready, 1, kLookMilliseconds) <= 0 || link_.pump();
      while (auto message = link_.next()) {
        if (message->say == Say::where) {
          const CallWatch::Place place = watch_.place();
          link_.send(Say::answer, fmt::format("{} {} {}", place.calls, place.seconds, place.what));
          continue;
        }
        const std::lock_guard lock(mutex_);
        orders_.push_back(std::move(*message));
        come_.notify_all();
      }
      if (!open) {
        if (process_ && !closing_.load()) _exit(kLeaderGone);  // whatever the other thread hangs in
        const std::lock_guard lock(mutex_);
        gone_ = true;
        come_.notify_all();
        return;
      }
      const CallWatch::Place place = watch_.place();
      if (!told && place.seconds > timeout_s_ + kGraceSeconds) {
        told = true;
        link_.send(Say::stuck, place.what);
      }
    }
  }

  Link& link_;
  const CallWatch& watch_;
  double timeout_s_;
  bool process_;
  std::mutex mutex_;
  std::condition_variable come_;
  std::deque<Message> orders_;
  bool gone_ = false;
  std::atomic<bool> closing_{false};
  std::thread thread_;  ///< last: uses all of the above
};

std::unique_ptr<Communicator> join_control(const GroupOrder& order, const Link& link, double timeout_s) {
  const std::size_t space = order.control.find(' ');
  const std::string kind = order.control.substr(0, space);
  const std::string rest = order.control.substr(space + 1);
  if (kind == "shm") return collectives::ShmWorld::open(rest).join(order.rank);
  if (kind == "listen") {
    const collectives::TcpListener listener = collectives::TcpListener::adopt(std::stoi(rest));
    return collectives::tcp_control(0, order.world_size, &listener, "", 0, timeout_s);
  }
  if (kind == "tcp") {
    return collectives::tcp_control(order.rank, order.world_size, nullptr, collectives::peer_address(link.fd()),
                                    std::stoi(rest), timeout_s);
  }
  throw std::runtime_error("no such control group: " + order.control);
}

/// "oom.pickle" of rank 1 is "oom-rank1.pickle": each has memory of its own.
std::string of_rank(const std::string& path, int rank) {
  const std::size_t dot = path.rfind('.');
  return fmt::format("{}-rank{}{}", path.substr(0, dot), rank, path.substr(dot));
}

/// A group that this rank is part of. In this order: what uses another comes after it and goes before it.
struct Membership {
  GroupOrder order;
  std::unique_ptr<Communicator> control;
  std::unique_ptr<Session> session;
  std::unique_ptr<Communicator> group;
};

class Rank {
 public:
  Rank(Link& link, Worker& worker, const Settings& settings, const collectives::BackendOptions& options)
      : link_(link), worker_(worker), settings_(settings), options_(options) {}

  [[nodiscard]] const CallWatch& watch() const { return watch_; }

  void form(const GroupOrder& order) {
    leave();
    const collectives::Backend* const backend = collectives::find_backend(order.backend);
    WM_CHECK(backend != nullptr, "backend " + order.backend);
    Membership& m = membership_.emplace();
    m.order = order;
    const CallWatch::Scope scope(watch_, "forming a group of " + std::to_string(order.world_size) + " ranks");
    m.control = join_control(order, link_, options_.timeout_s);
    Settings own = settings_;
    own.device = backend->device_kind() == DeviceKind::cpu ? Device::cpu() : Device::cuda(order.device);
    if (!own.dump_on_oom.empty()) own.dump_on_oom = of_rank(own.dump_on_oom, order.rank);
    m.session = std::make_unique<Session>(own);
    m.session->on_warning([this](const std::string& text) { link_.send(Say::warning, text); });
    m.group = backend->create(context());
    reports::Object found;
    if (order.rank == 0) found.set("library_version", backend->library_version());
    if (worker_.measures_links()) {
      if (const auto gbps = backend->measure_link_gbps(context(), *m.group)) found.set("link_gbps", *gbps);
    }
    link_.send(Say::done, figures_to_json(found));
  }

  void measure_row(std::size_t index) {
    WM_CHECK(membership_.has_value(), "a row without a group");
    Session& session = *membership_->session;
    OomDump* const dump = session.oom_dump();
    if (dump != nullptr) {
      dump->skip_to(index);  // ranks come and go with their groups: a row's number keeps the files apart
      dump->begin_row();
    }
    Outcome outcome = worker_.measure(at_work(), index);
    session.allocator().empty_cache();
    if (dump != nullptr) {
      const std::string said = dump->end_row(outcome.status == reports::Status::oom);
      if (!said.empty()) session.warn(said);
    }
    outcome.figures.set("outcome", name(outcome.status));
    outcome.figures.set("outcome_reason", outcome.reason);
    link_.send(Say::done, figures_to_json(outcome.figures));
  }

  void perform(const std::string& order) {
    WM_CHECK(membership_.has_value(), "an order without a group");
    link_.send(Say::done, worker_.perform(at_work(), order));
  }

  void leave() {
    if (!membership_) return;
    const CallWatch::Scope scope(watch_, "leaving the group");
    membership_.reset();
  }

 private:
  [[nodiscard]] RankAtWork at_work() {
    Membership& m = *membership_;
    return {*m.group, *m.control, *m.session, watch_, m.order.hosts == 1, m.order.local_size};
  }

  [[nodiscard]] collectives::RankContext context() const {
    const Membership& m = *membership_;
    collectives::RankContext context;
    context.rank = m.order.rank;
    context.world_size = m.order.world_size;
    context.local_rank = m.order.local_rank;
    context.local_size = m.order.local_size;
    context.hosts = m.order.hosts;
    context.host_address = m.order.address;
    context.device = m.session->context().device();
    context.control = m.control.get();
    context.options = options_;
    return context;
  }

  Link& link_;
  Worker& worker_;
  const Settings& settings_;
  const collectives::BackendOptions& options_;
  CallWatch watch_;
  std::optional<Membership> membership_;
};

/// "peer_died 1,2 words"
std::string fault_text(const CollectiveError& error) {
  std::string ranks;
  for (const int rank : error.ranks()) ranks.append(ranks.empty() ? "" : ",").append(std::to_string(rank));
  return fmt::format("{} {} {}", name(error.fault()), ranks.empty() ? "-" : ranks, error.what());
}

}  // namespace

std::string GroupOrder::text() const {
  return fmt::format("{} {} {} {} {} {} {} {} {}", backend, rank, world_size, local_rank, local_size, hosts, device,
                     address.empty() ? "-" : address, control);
}

GroupOrder GroupOrder::parse(const std::string& text) {
  GroupOrder order;
  std::istringstream words(text);
  words >> order.backend >> order.rank >> order.world_size >> order.local_rank >> order.local_size >> order.hosts >>
      order.device >> order.address;
  if (!words || words.get() != ' ') throw std::runtime_error("no order of a group: " + text);
  if (order.address == "-") order.address.clear();
  std::getline(words, order.control);
  return order;
}

int be_rank(Link link, Worker& worker, const Settings& settings, const collectives::BackendOptions& options,
            bool process) {
  Rank rank(link, worker, settings, options);
  Ear ear(link, rank.watch(), options.timeout_s, process);
  const auto failed = [&](const std::string& text) {
    link.send(Say::failed, text);
    // The others are told by the leader, which ends this process too; its words must not overtake these.
    while (process && ear.order()) {
    }
    return kFailed;
  };
  try {
    while (const auto order = ear.order()) {
      switch (order->say) {
        case Say::form:
          rank.form(GroupOrder::parse(order->text));
          break;
        case Say::row:
          rank.measure_row(std::stoul(order->text));
          break;
        case Say::other:
          rank.perform(order->text);
          break;
        case Say::quit:
          rank.leave();
          return 0;
        default:
          break;
      }
    }
    return kLeaderGone;
  } catch (const CollectiveError& error) {
    return failed(fault_text(error));
  } catch (const std::exception& error) {
    return failed(fmt::format("error - {}", error.what()));
  }
}

}  // namespace warpmeter::harness::launch
