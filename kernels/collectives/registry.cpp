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
const detail::AbsentBackend kNccl("nccl", DeviceKind::cuda, "the NCCL library",
                                  "this build has no NCCL: install libnccl-dev and build again");
const detail::AbsentBackend kPeer("p2p", DeviceKind::cuda, "kernels that read the other GPUs' memory",
                                  "this build has no CUDA");
const detail::AbsentBackend kAuto("auto", DeviceKind::cuda, "the faster of p2p and nccl, by size",
                                  "this build has no CUDA");

}  // namespace

std::span<const Backend* const> backends() {
  static const std::array<const Backend*, kNames.size()> table = {
      // One line a backend.
      &shm_backend(), &gloo_backend(), &mpi_backend(), &kNccl, &kPeer, &kAuto,
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
