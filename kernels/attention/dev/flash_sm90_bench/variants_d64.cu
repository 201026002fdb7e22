#include "kernels/attention/dev/flash_sm90_bench/add_variant.cuh"

namespace warpmeter::attention::flash_sm90::bench {

void add_d64(std::vector<Variant>& variants) {
  add_variant<64, 192, 128, true, 2, 1, false>("192x128_true_21false", variants);
  add_variant<64, 192, 128, true, 4, 1, true>("192x128_true_41true", variants);
  add_variant<64, 192, 128, true, 4, 1, false>("192x128_true_41false", variants);
  // Not measured yet: shorter steps, which fit the diagonal better.
  add_variant<64, 192, 64, true, 4, 1, false>("192x64_true_41false", variants);
  add_variant<64, 192, 96, true, 4, 1, false>("192x96_true_41false", variants);
  add_variant<64, 128, 128, true, 4, 1, false>("128x128_true_41false", variants);
}

}  // namespace warpmeter::attention::flash_sm90::bench
