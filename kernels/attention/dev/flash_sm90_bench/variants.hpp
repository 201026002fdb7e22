#pragma once

#include <vector>

#include "kernels/attention/cuda/flash_sm90/kernels.hpp"

/// What is compared: tile variants of one head dim, bf16; the name says the tile and what it does.
namespace warpmeter::attention::flash_sm90::bench {

struct Variant {
  ForwardKernel kernel;
  bool causal;
};

void add_d64(std::vector<Variant>& variants);
void add_d128(std::vector<Variant>& variants);
void add_d256(std::vector<Variant>& variants);

}  // namespace warpmeter::attention::flash_sm90::bench
