#include "kernels/collectives/cuda/p2p_kernels.cuh"

namespace warpmeter::collectives::p2p {

void launch_raw(const P2pCall& call, const Launch& how) {
  launch_kernels<Raw>(call, how);
}
void load_raw() {
  load_each<Raw>();
}

}  // namespace warpmeter::collectives::p2p
