#pragma once

#include <cstdint>

namespace warpmeter::attention {

/// Where the parts of a query row are merged.
enum class Join : std::int32_t {
  none,        ///< there is one part
  cluster,     ///< the parts are a cluster of blocks (sm_90) that read each other's shared memory; no workspace
  last_block,  ///< through memory, by the block of a row's parts that is done last
  kernel,      ///< through memory, by a kernel of its own; on the CPU by the threads, after the streams
};

}  // namespace warpmeter::attention
