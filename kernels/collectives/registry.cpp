#include <array>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/detail/absent_backend.hpp"
#include "kernels/collectives/shm.hpp"
#if WARPMETER_GLOO
#include "kernels/collectives/gloo.hpp"
#endif
#if WARPMETER_MPI
#include "kernels/collectives/mpi.hpp"
#endif
#if WARPMETER_CUDA
#include "kernels/collectives/auto_communicator.hpp"
#include "kernels/collectives/p2p_communicator.hpp"
#endif
#if WARPMETER_NCCL
#include "kernels/collectives/nccl_communicator.hpp"
#endif

namespace warpmeter::collectives {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"shm", "gloo", "mpi", "nccl", "p2p", "auto"};

#if !WARPMETER_GLOO
const detail::AbsentBackend kGloo("gloo", DeviceKind::cpu, "the Gloo library over TCP",
                                  "this build has no Gloo: install libgloo-dev and build again");
const Backend& gloo_backend() {
  return kGloo;
}
#endif
#if !WARPMETER_MPI
const detail::AbsentBackend kMpi("mpi", DeviceKind::cpu, "the MPI library",
                                 "this build has no MPI: install libopenmpi-dev and openmpi-bin and build again");
const Backend& mpi_backend() {
  return kMpi;
}
#endif
#if !WARPMETER_NCCL
const detail::AbsentBackend kNccl("nccl", DeviceKind::cuda, "the NCCL library",
                                  WARPMETER_CUDA ? "this build has no NCCL: install libnccl-dev and build again"
                                                 : "this build has no CUDA");
const Backend& nccl_backend() {
  return kNccl;
}
#endif
#if !WARPMETER_CUDA
const detail::AbsentBackend kPeer("p2p", DeviceKind::cuda,
                                  "kernels that read and write the other GPUs' memory (one host)",
                                  "this build has no CUDA");
const Backend& p2p_backend() {
  return kPeer;
}
const detail::AbsentBackend kAuto("auto", DeviceKind::cuda, "the faster of p2p and nccl, by size",
                                  "this build has no CUDA");
const Backend& auto_backend() {
  return kAuto;
}
#endif

}  // namespace

std::span<const Backend* const> backends() {
  static const std::array<const Backend*, kNames.size()> table = {
      // One line a backend.
      &shm_backend(), &gloo_backend(), &mpi_backend(), &nccl_backend(), &p2p_backend(), &auto_backend(),
  };
  return table;
}

std::span<const std::string_view> backend_names() {
  return kNames;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace warpmeter::collectives
