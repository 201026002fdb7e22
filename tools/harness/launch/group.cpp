#include "tools/harness/launch/group.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/collectives/tcp_control.hpp"
#include "kernels/runtime/check.hpp"
#include "tools/harness/isolation_channel.hpp"
#include "tools/harness/launch/rank.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMilliseconds = 20;
constexpr double kSettleSeconds = 0.3;  ///< from the first bad news until the verdict: better news may follow
constexpr double kAnswerSeconds = 1;    ///< for a rank to say where it is
/// The control group is never the first to lose patience: the ranks' watches are.
constexpr double kControlTimeout = 1e6;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// " (its process 123 is stopped)" where that is so.
std::string state_of(const Ranks::Member& member) {
  std::ifstream file("/proc/" + std::to_string(member.pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return "";
  const char state = text[name_end + 2];
  return state == 'T' || state == 't' ? fmt::format(" (its process {} is stopped)", member.pid) : "";
}

/// `bound`: by a launcher, each rank perhaps to a core of its own. On one core they would hardly spin, and leave the
/// barrier before a sample one after the other.
std::unique_ptr<collectives::ShmWorld> make_control(int world_size, bool bound) {
  collectives::ShmOptions options;
  options.world_size = world_size;
  if (bound) options.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  options.threads = 1;
  options.timeout_s = kControlTimeout;
  options.heap_bytes = 4096;
  options.chunk_bytes = std::size_t{64} << 10;
  return std::make_unique<collectives::ShmWorld>(options);
}

}  // namespace

/// Bad news of the ranks, as they come.
struct Group::Trouble {
  struct OfRank {
    std::string fault;  ///< "timeout 1,2 words", as the rank said it
    bool stuck = false;
    bool gone = false;  ///< its link is closed
    std::string answer;
  };
  explicit Trouble(int ranks) : of(static_cast<std::size_t>(ranks)) {}

  std::vector<OfRank> of;
  std::optional<Clock::time_point> since;
  void begins() {
    if (!since) since = Clock::now();
  }
};

Group::Group(std::shared_ptr<Ranks> ranks, const collectives::Backend& backend, double timeout_s, Warn warn)
    : ranks_(std::move(ranks)), timeout_s_(timeout_s), warn_(std::move(warn)) {
  // Over several hosts rank 0 lets the others connect to it.
  std::optional<collectives::TcpListener> listener;
  if (ranks_->hosts() == 1) {
    control_ = *make_control(ranks_->size(), ranks_->reusable());
  } else {
    listener.emplace();
  }
  const auto order_of = [&](int rank) {
    const Ranks::Member& member = ranks_->members()[static_cast<std::size_t>(rank)];
    GroupOrder o;
    o.backend = backend.name();
    o.rank = rank;
    o.world_size = ranks_->size();
    o.local_rank = member.local_rank;
    o.local_size = ranks_->local_size(member);
    o.hosts = ranks_->hosts();
    o.device = member.local_rank;
    o.address = member.address;
    if (control_) {
      o.control = "shm " + control_->path();
    } else {
      o.control =
          rank == 0 ? "listen " + std::to_string(dup(listener->fd())) : "tcp " + std::to_string(listener->port());
    }
    return o.text();
  };
  const std::string what = fmt::format("forming the group of {}", backend.name());
  const reports::Object found = figures_from_json(order(Say::form, order_of, what).front());
  if (const reports::Value* version = found.find("library_version"); version != nullptr && version->as_string()) {
    library_version_ = *version->as_string();
  }
  if (const reports::Value* gbps = found.find("link_gbps")) link_gbps_ = gbps->as_number();
}

Group::~Group() {
  if (lost_ || ranks_ == nullptr) return;
  if (!ranks_->reusable()) ranks_->quit();
}

Outcome Group::measure(std::size_t index, const std::string& what) {
  const auto text = [&](int) { return std::to_string(index); };
  const std::vector<std::string> all = order(Say::row, text, what);
  Outcome outcome;
  const reports::Object said = figures_from_json(all.front());
  for (const auto& [name, value] : said.fields()) {
    if (name == "outcome") {
      outcome.status = reports::parse_status(*value.as_string()).value_or(reports::Status::error);
    } else if (name == "outcome_reason") {
      outcome.reason = *value.as_string();
    } else {
      outcome.figures.set(name, value);
    }
  }
  return outcome;
}

std::vector<std::string> Group::perform(const std::string& text, const std::string& what) {
  return order(
      Say::other, [&](int) { return text; }, what);
}

void Group::take_messages(int rank, std::vector<std::optional<std::string>>& done, Trouble& trouble) {
  Ranks::Member& member = ranks_->members()[static_cast<std::size_t>(rank)];
  Trouble::OfRank& of = trouble.of[static_cast<std::size_t>(rank)];
  const bool open = member.link.pump();
  while (const auto message = member.link.next()) {
    switch (message->say) {
      case Say::done:
        done[static_cast<std::size_t>(rank)] = message->text;
        break;
      case Say::failed:
        of.fault = message->text;
        trouble.begins();
        break;
      case Say::stuck:
        of.stuck = true;
        trouble.begins();
        break;
      case Say::answer:
        of.answer = message->text;
        break;
      case Say::warning:
        warn_(message->text);
        break;
      default:
        break;
    }
  }
  if (!open && !of.gone) {
    of.gone = true;
    trouble.begins();
  }
}

std::vector<std::string> Group::order(Say say, const std::function<std::string(int)>& text, const std::string& what) {
  const int size = ranks_->size();
  std::vector<std::optional<std::string>> done(static_cast<std::size_t>(size));
  Trouble trouble(size);
  for (int r = 0; r < size; ++r) ranks_->members()[static_cast<std::size_t>(r)].link.send(say, text(r));

  auto asked_at = Clock::now();  // a rank that is stopped says nothing: now and then all are asked
  bool asked = false;
  const auto all_done = [&] {
    return std::all_of(done.begin(), done.end(), [](const auto& d) { return d.has_value(); });
  };
  while (!all_done()) {
    if (interrupt_requested()) {
      lost_ = true;
      ranks_->kill();
      throw Interrupted{};
    }
    std::vector<pollfd> ready;
    for (Ranks::Member& member : ranks_->members()) ready.push_back({member.link.fd(), POLLIN, 0});
    if (poll(ready.data(), ready.size(), kLookMilliseconds) > 0) {
      for (int r = 0; r < size; ++r) {
        if (ready[static_cast<std::size_t>(r)].revents != 0) take_messages(r, done, trouble);
      }
    }
    // Closed links are ready all the time.
    if (trouble.since) {
      if (seconds_since(*trouble.since) > kSettleSeconds) give_up(trouble, what);
      poll(nullptr, 0, 5);
      continue;
    }
    if (!asked && seconds_since(asked_at) > std::max(timeout_s_ / 2, 0.1)) {
      asked = true;
      asked_at = Clock::now();
      for (int r = 0; r < size; ++r) {
        trouble.of[static_cast<std::size_t>(r)].answer.clear();
        ranks_->members()[static_cast<std::size_t>(r)].link.send(Say::where);
      }
    } else if (asked && seconds_since(asked_at) > std::max(timeout_s_ / 2, kAnswerSeconds)) {
      asked = false;
      for (int r = 0; r < size; ++r) {
        const std::size_t i = static_cast<std::size_t>(r);
        if (!done[i] && trouble.of[i].answer.empty()) trouble.begins();
      }
    }
  }
  std::vector<std::string> texts;
  for (auto& d : done) texts.push_back(std::move(*d));
  return texts;
}

void Group::give_up(Trouble& trouble, const std::string& what) {
  using reports::Status;
  lost_ = true;
  const int size = ranks_->size();
  const auto end = [&](Status status, const std::string& reason) {
    ranks_->kill();
    throw RunLost(status, reason);
  };
  // A rank's own death explains whatever the others say.
  for (int r = 0; r < size; ++r) {
    if (!trouble.of[static_cast<std::size_t>(r)].fault.empty()) continue;  // it waits to be ended
    if (const auto how = ranks_->ended(r)) end(Status::crashed, fmt::format("rank {} {}, in {}", r, *how, what));
  }
  // Then what a rank says of itself.
  const auto fault_of = [&](int r) {
    std::istringstream words(trouble.of[static_cast<std::size_t>(r)].fault);
    std::string fault, ranks, text;
    words >> fault >> ranks;
    words.get();
    std::getline(words, text);
    return std::pair(fault, text);
  };
  for (int r = 0; r < size; ++r) {
    const auto [fault, text] = fault_of(r);
    if (fault.empty() || fault == name(collectives::CollectiveFault::peer_died)) continue;
    const bool late = fault == name(collectives::CollectiveFault::timeout);
    end(late ? Status::timeout : Status::error, late ? text : fmt::format("rank {}: {}", r, text));
  }
  for (int r = 0; r < size; ++r) {
    const Trouble::OfRank& of = trouble.of[static_cast<std::size_t>(r)];
    if (!of.gone || !of.fault.empty()) continue;  // one that has told of another's end has left by itself
    const Ranks::Member& member = ranks_->members()[static_cast<std::size_t>(r)];
    end(Status::crashed, fmt::format("rank {} (process {} on {}) is gone, in {}", r, member.pid, member.host, what));
  }
  for (int r = 0; r < size; ++r) {
    const auto [fault, text] = fault_of(r);
    if (!fault.empty()) end(Status::crashed, fmt::format("rank {}: {}", r, text));
  }

  // Stuck: who is where?
  for (int r = 0; r < size; ++r) {
    trouble.of[static_cast<std::size_t>(r)].answer.clear();
    ranks_->members()[static_cast<std::size_t>(r)].link.send(Say::where);
  }
  const auto begin = Clock::now();
  std::vector<std::optional<std::string>> done(static_cast<std::size_t>(size));
  while (seconds_since(begin) < kAnswerSeconds) {
    for (int r = 0; r < size; ++r) take_messages(r, done, trouble);
    poll(nullptr, 0, kLookMilliseconds);
  }
  std::vector<int> silent, late, waiting;
  for (int r = 0; r < size; ++r) {
    const std::string& answer = trouble.of[static_cast<std::size_t>(r)].answer;
    std::istringstream words(answer);
    long long calls = 0;
    double seconds = 0;
    words >> calls >> seconds;
    if (answer.empty()) {
      silent.push_back(r);
    } else if (seconds < timeout_s_ / 2) {
      late.push_back(r);
    } else {
      waiting.push_back(r);
    }
  }
  std::string reason = fmt::format("timeout after {:g} s in {}: ", timeout_s_, what);
  if (!silent.empty()) {
    reason += collectives::name_ranks(silent) + (silent.size() == 1 ? " does" : " do") + " not answer" +
              state_of(ranks_->members()[static_cast<std::size_t>(silent.front())]);
  }
  if (!late.empty()) {
    reason += (silent.empty() ? "" : ", ") + collectives::name_ranks(late) + " did not come";
  }
  if (!waiting.empty()) {
    reason += (silent.empty() && late.empty() ? "" : "; ") + collectives::name_ranks(waiting) +
              (waiting.size() == 1 ? " waits" : " wait") + " in it";
  }
  end(Status::timeout, reason);
  throw RunLost(Status::timeout, reason);  // for the compiler
}

}  // namespace warpmeter::harness::launch
