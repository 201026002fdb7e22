#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d64(std::vector<Variant>& variants) {
  add_variant<64, 192, 128, true, 2, 1>("192x128_true_21", variants);
  add_variant<64, 192, 128, true, 3, 1>("192x128_true_31", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
