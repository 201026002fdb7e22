#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d128(std::vector<Variant>& variants) {
  add_variant<128, 128, 128, true, 2, 1>("128x128_true_21", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
