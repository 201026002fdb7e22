#include <cuda_runtime_api.h>

#include "tools/harness/doctor/doctor.hpp"

namespace warpmeter::harness::doctor {

/// The last word on peer access has CUDA: the management library does not know of every container's and every IOMMU's
/// refusal.
void ask_cuda_for_peers(GpuSystem& system) {
  const std::size_t n = system.gpus.size();
  system.peers.resize(n, std::vector<Peer>(n, Peer::unknown));
  for (std::size_t i = 0; i < n; ++i) {
    system.peers[i].resize(n, Peer::unknown);
    system.peers[i][i] = Peer::self;
    for (std::size_t j = 0; j < n; ++j) {
      const auto from = system.gpus[i].cuda_index, to = system.gpus[j].cuda_index;
      if (i == j || !from || !to) continue;
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, *from, *to) != cudaSuccess) continue;
      if (can == 0) {
        system.peers[i][j] = Peer::none;
      } else if (system.peers[i][j] != Peer::nvlink) {
        system.peers[i][j] = Peer::pcie;
      }
    }
  }
}

}  // namespace warpmeter::harness::doctor
