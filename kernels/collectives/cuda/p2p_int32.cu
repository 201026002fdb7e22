#include "kernels/collectives/cuda/p2p_kernels.cuh"

namespace warpmeter::collectives::p2p {

void launch_int32(const P2pCall& call, const Launch& how) {
  launch_kernels<Int32>(call, how);
}
void load_int32() {
  load_each<Int32>();
}

}  // namespace warpmeter::collectives::p2p
