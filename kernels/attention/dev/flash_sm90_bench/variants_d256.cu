#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d256(std::vector<Variant>& variants) {
  add_variant<256, 128, 80, false, 2, 1, false>("128x80_false_21false", variants);
  add_variant<96, 128, 176, true, 2, 1, false>("128x176_true_21false", variants);
  add_variant<80, 128, 176, true, 2, 1, false>("128x176_true_21false", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
