#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d64(std::vector<Variant>& variants) {
  add_variant<64, 192, 128, true, 2, 1, false>("192x128_true_21false", variants);
  add_variant<64, 192, 128, true, 4, 1, true>("192x128_true_41true", variants);
  // Two stages of queries: an item's come while the one before is in work.
  add_variant<64, 192, 128, true, 2, 2, false>("192x128_true_22false", variants);
  add_variant<64, 192, 128, true, 3, 2, false>("192x128_true_32false", variants);
  add_variant<64, 192, 128, true, 4, 2, false>("192x128_true_42false", variants);
  add_variant<64, 192, 128, true, 4, 2, true>("192x128_true_42true", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
