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

}  // namespace warpmeter::attention
