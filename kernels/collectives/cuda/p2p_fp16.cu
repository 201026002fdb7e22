#include "kernels/collectives/cuda/p2p_kernels.cuh"

namespace warpmeter::collectives::p2p {

void launch_fp16(const P2pCall& call, const Launch& how) {
  launch_kernels<Fp16>(call, how);
}
void load_fp16() {
  load_each<Fp16>();
}

}  // namespace warpmeter::collectives::p2p
