#include "kernels/collectives/launch_environment.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include <unistd.h>

namespace warpmeter::collectives {
namespace {

using Variable = std::function<const char*(const char*)>;

int number(const char* name, std::string_view text, long low, long high) {
  long value = 0;
  const bool digits = !text.empty() && text.size() < 10 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  for (const char c : digits ? text : "") value = value * 10 + (c - '0');
  if (!digits || value < low || value > high) {
    throw LaunchError(std::string(name) + "='" + std::string(text.substr(0, 40)) + "' is no number from " +
                      std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<int>(value);
}

/// Variables of one launcher.
struct Dialect {
  const char* launcher;
  const char* rank;
  const char* world_size;
  bool by_mpi;
};
constexpr std::array<Dialect, 4> kDialects = {{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"MPICH's mpirun", "PMI_RANK", "PMI_SIZE", true},
    // In a batch script outside srun SLURM_PROCID is set too, the number of a step's tasks is not.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", false},
    {"torchrun or the like", "RANK", "WORLD_SIZE", false},
}};

/// "node[03-07,9],other" -> "node03".
std::string first_node(std::string_view list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(list.substr(0, comma));
  const std::string_view inside = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)) + std::string(inside.substr(0, inside.find_first_of(",-]")));
}

void read_place(LaunchEnvironment& found, const Variable& variable, const std::string& rendezvous) {
  if (!rendezvous.empty()) {
    const std::size_t colon = rendezvous.rfind(':');
    if (colon == std::string::npos || colon == 0)
      throw LaunchError("--rendezvous '" + rendezvous + "' is not HOST:PORT");
    found.host = rendezvous.substr(0, colon);
    found.port = number("the port of --rendezvous", std::string_view(rendezvous).substr(colon + 1), 1, 65535);
    return;
  }
  const char* const host = variable("MASTER_ADDR");
  const char* const port = variable("MASTER_PORT");
  if (host != nullptr && port != nullptr) {
    found.host = host;
    found.port = number("MASTER_PORT", port, 1, 65535);
    // torchrun's own store has this port: the one above it is taken.
    const char* const agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != nullptr && std::string_view(agent) == "True" && found.port < 65535) ++found.port;
    return;
  }
  if (found.by_mpi) return;  // the library knows
  const char* const nodes = variable("SLURM_STEP_NODELIST");
  const char* const job = variable("SLURM_JOB_ID");
  if (nodes != nullptr && job != nullptr && found.launcher == "srun") {
    found.host = first_node(nodes);
    found.port = 20000 + number("SLURM_JOB_ID", std::string_view(job).substr(0, 9), 0, 999999999) % 20000;
    return;
  }
  throw LaunchError(found.launcher + std::string(" has started rank ") + std::to_string(found.rank) + " of " +
                    std::to_string(found.world_size) + " and not said where the ranks meet: set MASTER_ADDR and " +
                    "MASTER_PORT, or give --rendezvous HOST:PORT");
}

}  // namespace

std::optional<LaunchEnvironment> read_launch_environment(const Variable& variable, const std::string& parent,
                                                         const std::string& rendezvous) {
  for (const Dialect& dialect : kDialects) {
    const char* const rank = variable(dialect.rank);
    const char* const size = variable(dialect.world_size);
    const bool is_srun = std::string_view(dialect.launcher) == "srun";
    if (rank == nullptr && size == nullptr) continue;
    if (rank == nullptr || size == nullptr) {
      if (is_srun) continue;  // a batch script or an allocation, not a step
      throw LaunchError(std::string(rank != nullptr ? dialect.rank : dialect.world_size) + " is set and " +
                        (rank != nullptr ? dialect.world_size : dialect.rank) +
                        " is not: set both, or unset it to let this program start the ranks");
    }
    // A plain call inside an allocation of one task, an interactive shell of srun.
    LaunchEnvironment found;
    found.launcher = dialect.launcher;
    found.by_mpi = dialect.by_mpi;
    found.world_size = number(dialect.world_size, size, 1, 100000);
    found.rank = number(dialect.rank, rank, 0, 1000000);
    if (found.rank >= found.world_size) {
      throw LaunchError(std::string(dialect.rank) + "=" + rank + " is no rank of " + dialect.world_size + "=" + size);
    }
    read_place(found, variable, rendezvous);
    return found;
  }
  if (!rendezvous.empty()) {
    throw LaunchError(
        "--rendezvous is for ranks that a launcher has started, and neither RANK and WORLD_SIZE nor a "
        "launcher's own variables are set");
  }
  static constexpr std::array<std::string_view, 8> kLaunchers = {
      "mpirun", "mpiexec", "orterun", "orted", "prted", "prterun", "hydra_pmi_proxy", "mpiexec.hydra"};
  if (std::find(kLaunchers.begin(), kLaunchers.end(), parent) != kLaunchers.end()) {
    throw LaunchError("started by " + parent +
                      ", which has told no rank (OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID "
                      "or RANK): set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process");
  }
  return std::nullopt;
}

std::optional<LaunchEnvironment> launch_environment(const std::string& rendezvous) {
  std::string parent;
  std::ifstream("/proc/" + std::to_string(getppid()) + "/comm") >> parent;
  return read_launch_environment([](const char* name) { return std::getenv(name); }, parent, rendezvous);
}

}  // namespace warpmeter::collectives
