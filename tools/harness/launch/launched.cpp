#include <csignal>
#include <cstdio>
#include <random>
#include <sstream>

#include <fmt/core.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include "kernels/collectives/launch_environment.hpp"
#include "tools/harness/launch/program.hpp"
#if WARPMETER_MPI
#include "kernels/collectives/mpi.hpp"
#endif
#include "tools/harness/launch/options.hpp"
#include "tools/harness/launch/rank.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::launch {
namespace {

using collectives::LaunchEnvironment;

/// Where rank 0 is to be met.
struct Place {
  std::vector<std::string> hosts;
  int port = 0;
  std::string secret = "-";  ///< tells this run's rank 0 from anything else that listens there
};

/// This host's addresses, the loopback last: a rank of another host tries them in turn.
std::vector<std::string> own_addresses() {
  std::vector<std::string> outer, loopback;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {"127.0.0.1"};
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_UP) == 0) continue;
    char text[NI_MAXHOST] = {};
    if (getnameinfo(a->ifa_addr, sizeof(sockaddr_in), text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    ((a->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outer).emplace_back(text);
  }
  freeifaddrs(all);
  outer.insert(outer.end(), loopback.begin(), loopback.end());
  return outer;
}

/// Through the MPI library, which knows all ranks. Every rank calls it.
Place tell_place(const LaunchEnvironment& environment, int port) {
#if WARPMETER_MPI
  std::string text;
  if (environment.rank == 0) {
    std::random_device random;
    text = fmt::format("{} {:08x}{:08x}", port, random(), random());
    for (const std::string& host : own_addresses()) text += " " + host;
  }
  std::istringstream words(collectives::mpi_broadcast(text));
  Place place;
  words >> place.port >> place.secret;
  for (std::string host; words >> host;) place.hosts.push_back(host);
  return place;
#else
  static_cast<void>(port);
  throw collectives::LaunchError(
      environment.launcher +
      " has started this rank, and this build has no MPI library to ask where rank 0 is: set "
      "MASTER_ADDR and MASTER_PORT, give --rendezvous HOST:PORT, or install libopenmpi-dev "
      "and build again");
#endif
}

int lead(const RankProgram& program, Worker& worker, const LaunchEnvironment& environment, const Settings& settings,
         const collectives::BackendOptions& options, int argc, const char* const* argv) {
  const collectives::TcpListener listener(environment.port);
  Place place{{environment.host}, environment.port};
  if (environment.host.empty()) place = tell_place(environment, listener.port());
  install_interrupt_handler();
  const std::string where = fmt::format("{}:{}", place.hosts.empty() ? "here" : place.hosts.front(), listener.port());
  const auto be_rank_0 = [&](Link link) { (void)be_rank(std::move(link), worker, settings, options, false); };
  int status = 0;
  bool stuck = false;
  {
    const std::shared_ptr<Ranks> ranks =
        join_ranks(environment.world_size, listener, where, place.secret, options.timeout_s, be_rank_0);
    status = run_tool(*program.tool({argv, argv + argc}, ranks), argc, argv);
    ranks->quit();
    stuck = ranks->stuck_here();
  }
  if (stuck || status != 0) {
    // Ranks are gone, or may be: the MPI library would wait for them at the end.
    std::fflush(nullptr);
    _exit(status);
  }
  return status;
}

}  // namespace

std::optional<int> run_launched(const RankProgram& program, int argc, const char* const* argv) {
  const std::unique_ptr<Tool> tool = program.tool({}, nullptr);
  const OptionTable table = parse_command_line(*tool, argc, argv);
  if (table.action() != OptionTable::Action::run) {
    // Said once; what else is wrong with the launcher does not matter to it.
    const auto environment = collectives::launch_environment("");
    return environment && environment->rank != 0 ? std::optional(0) : std::nullopt;
  }
  const auto environment = collectives::launch_environment(table.text("--rendezvous"));
  if (!environment) return std::nullopt;
  const auto silent = [&](int status) { return environment->rank == 0 ? std::optional<int>() : std::optional(status); };
  try {
    program.check_launched(table, environment->launcher, environment->world_size);
    if (!program.wants_ranks(table)) return std::nullopt;
    Settings settings = read_settings(table, tool->dtypes());
    tool->adjust(table, settings);
    if (settings.dry_run) return silent(0);
    if (settings.isolate) {
      throw table.error("--isolate", "ranks that " + environment->launcher + " has started cannot be started anew");
    }
    const std::unique_ptr<Worker> worker = program.worker(table, settings, environment->world_size);
    const auto options = backend_options(table);
    if (environment->rank == 0) return lead(program, *worker, *environment, settings, options, argc, argv);
    Place place{{environment->host}, environment->port};
    if (environment->host.empty()) place = tell_place(*environment, 0);
    Link link = link_to_rank_0(environment->rank, place.hosts, place.port, place.secret, options.timeout_s);
    std::signal(SIGINT, SIG_IGN);  // rank 0 decides
    return be_rank(std::move(link), *worker, settings, options, true);
  } catch (const UsageError&) {
    if (environment->rank == 0) throw;
    return 2;
  }
}

}  // namespace warpmeter::harness::launch
