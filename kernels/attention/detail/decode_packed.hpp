#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/attention/decode.hpp"

/// Decoding of more rows a key/value head than one block of the decoding kernel has, by Hopper's forward of training
/// (flash_hopper.hpp). The heads of a group and their query tokens are its query rows, 64 of a tile's 128, so that each
/// key is read once; the arithmetic of the tile's other half costs less than reading the keys. What all tokens see is
/// one call without a mask, the last tokens and up to a tile of keys before them another with it, and the two are
/// merged by their LSE. From pages the first call reads for itself; the second's few keys are gathered before it.
namespace warpmeter::attention::detail {

/// Sequences of one length, of the queries' 16-bit type, causal, long enough and so many that they fill the current
/// device: a tile walks over all keys of its head.
[[nodiscard]] bool packs(const DecodeProblem& problem, const KvView& view, std::int64_t processors);
/// Valid where packs(), like what follows.
[[nodiscard]] std::string packed_kernel(const DecodeProblem& problem, const KvView& view);
/// Taken from the allocator.
[[nodiscard]] std::size_t packed_bytes(const DecodeProblem& problem, const KvView& view);
/// False where the operands do not lie so that a group's rows are neighbours: then nothing is done.
[[nodiscard]] bool flash_decode_packed(const Context& context, const DecodeProblem& problem, const KvView& view,
                                       const ConstOperand& q, const Operand& o, float* lse);

}  // namespace warpmeter::attention::detail
