#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/collectives/auto_communicator.hpp"
#include "kernels/collectives/launch.hpp"
#include "kernels/collectives/p2p_communicator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "tests/kernels/collectives/ranks.hpp"
#if WARPMETER_NCCL
#include "kernels/collectives/nccl_communicator.hpp"
#endif

namespace warpmeter::collectives::ranks {

/// The GPUs, counted in a process of its own: CUDA does not live through the fork() that starts the ranks.
inline int gpus() {
  static const int count = [] {
    const pid_t pid = fork();
    if (pid == 0) _exit(cuda_device_count());
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return count;
}

/// Starts the ranks, each with its GPU; more ranks than GPUs share them. The control group is shm's.
inline LaunchReport launch_on_gpus(int world_size, const std::function<void(const RankContext&)>& body) {
  LaunchOptions options = ranks::options(world_size);
  options.timeout_s = 120;
  options.grace_s = 15;  // for the others to find out by themselves
  const int devices = gpus();
  return launch_ranks(options, [&](Communicator& control) {
    RankContext context;
    context.rank = context.local_rank = control.rank();
    context.world_size = context.local_size = control.world_size();
    context.device = Device::cuda(control.rank() % devices);
    context.control = &control;
    context.options.timeout_s = 20;
    WM_CUDA_CHECK(cudaSetDevice(context.device.index));
    body(context);
  });
}

}  // namespace warpmeter::collectives::ranks

#define WM_NEED_GPUS(count)                                                                               \
  do {                                                                                                    \
    if (::warpmeter::collectives::ranks::gpus() < (count)) {                                              \
      GTEST_SKIP() << "needs " << (count) << " GPU(s), here " << ::warpmeter::collectives::ranks::gpus(); \
    }                                                                                                     \
  } while (false)
