#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d256(std::vector<Variant>& variants) {
  add_variant<256, 128, 80, false, 2, 1>("128x80_false_21", variants);
  add_variant<96, 128, 176, true, 2, 1>("128x176_true_21", variants);
  add_variant<80, 128, 176, true, 2, 1>("128x176_true_21", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
