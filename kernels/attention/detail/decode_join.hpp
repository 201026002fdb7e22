#pragma once

#include <cstdint>

namespace warpmeter::attention {

/// Where the parts of a query row are merged on CUDA; on the CPU it is the threads, once the streams are through.
enum class Join : std::int32_t {
  none,        ///< there is one part, or no CUDA
  cluster,     ///< the parts are a cluster of blocks (sm_90) that read each other's shared memory; no workspace
  last_block,  ///< through memory, by the block of a row's parts that is done last
  kernel,      ///< through memory, by a kernel of its own
};

/// What a block of the tensor core kernel of flash decoding is (CUDA).
enum class DecodeBlock : std::int32_t {
  usual,  ///< two of them fill a multiprocessor of Hopper
  wide,   ///< twice the warps, for a block that has a multiprocessor to itself
  small,  ///< for devices on which a block has less shared memory than the usual one takes: at most 99 KiB
};

}  // namespace warpmeter::attention
