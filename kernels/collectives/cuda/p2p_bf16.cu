#include "kernels/collectives/cuda/p2p_kernels.cuh"

namespace warpmeter::collectives::p2p {

void launch_bf16(const P2pCall& call, const Launch& how) {
  launch_kernels<Bf16>(call, how);
}
void load_bf16() {
  load_each<Bf16>();
}

}  // namespace warpmeter::collectives::p2p
