#include "kernels/collectives/cuda/p2p_kernels.cuh"

namespace warpmeter::collectives::p2p {

void launch_fp32(const P2pCall& call, const Launch& how) {
  launch_kernels<Fp32>(call, how);
}
void load_fp32() {
  load_each<Fp32>();
}

}  // namespace warpmeter::collectives::p2p
