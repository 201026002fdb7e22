#include "kernels/collectives/launch_environment.hpp"

#include <map>

#include <gtest/gtest.h>

namespace warpmeter::collectives {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> read(const Variables& variables, const std::string& parent = "bash",
                                      const std::string& rendezvous = "") {
  return read_launch_environment(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      parent, rendezvous);
}

std::string refusal(const Variables& variables, const std::string& parent = "bash",
                    const std::string& rendezvous = "") {
  try {
    (void)read(variables, parent, rendezvous);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchEnvironment, NobodyHasStartedThis) {
  EXPECT_FALSE(read({}));
  // A batch script, or a shell in an allocation: no step of srun.
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}));
}

TEST(LaunchEnvironment, Torchrun) {
  const Variables variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  const auto found = read(variables);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->host, "node1");
  EXPECT_EQ(found->port, 29500);
  // The agent's store sits on its port.
  Variables with_agent = variables;
  with_agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(with_agent)->port, 29501);
  EXPECT_EQ(read(variables, "bash", "10.0.0.1:80")->host, "10.0.0.1");
}

TEST(LaunchEnvironment, MpiLaunchersComeFirstAndKnowThePlace) {
  const auto open_mpi = read({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"RANK", "7"}}, "orted");
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 1);
  EXPECT_TRUE(open_mpi->by_mpi);
  EXPECT_TRUE(open_mpi->host.empty());
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}})->world_size, 3);
}

TEST(LaunchEnvironment, Srun) {
  const auto found = read({{"SLURM_PROCID", "2"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_STEP_NODELIST", "gpu[03-07,9],other"},
                           {"SLURM_JOB_ID", "1234567"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->host, "gpu03");
  EXPECT_EQ(found->port, 20000 + 1234567 % 20000);
}

TEST(LaunchEnvironment, RefusalsSayWhatIsMissing) {
  EXPECT_EQ(refusal({{"RANK", "1"}}).find("RANK is set and WORLD_SIZE is not"), 0U);
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_SIZE", "1"}}).find("OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK"), 0U);
  EXPECT_EQ(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 is no rank of WORLD_SIZE=2");
  EXPECT_EQ(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).find("RANK='-1'"), 0U);
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("WORLD_SIZE='0'"), 0U);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("--rendezvous HOST:PORT"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "bash", "nowhere").find("HOST:PORT"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "bash", "a:99999").find("65535"), std::string::npos);
  EXPECT_NE(refusal({}, "bash", "a:1").find("--rendezvous"), std::string::npos);
  EXPECT_EQ(refusal({}, "mpirun").find("started by mpirun, which has told no rank"), 0U);
}

}  // namespace
}  // namespace warpmeter::collectives
