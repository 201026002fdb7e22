#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/ceilings/workload.hpp"
#include "kernels/runtime/context.hpp"

namespace warpmeter::ceilings {

/// Copies a buffer to another; amount() counts bytes read plus bytes written.
///
/// CPU: all threads, each its own contiguous part, which it also touched first (NUMA); vectors of the widest
/// instruction set, with ordinary or non-temporal stores, as one or several streams a thread.
/// CUDA: 16-byte loads and stores, several in flight a thread, by as many blocks as needed or as fit; and the driver's
/// own copy.
class CopyWorkload : public Workload {
 public:
  [[nodiscard]] virtual std::size_t bytes() const = 0;  ///< of one buffer
  [[nodiscard]] virtual const void* source() const = 0;
  [[nodiscard]] virtual void* destination() const = 0;
};

/// Reads a buffer and adds it up, so that no load can be left out; amount() counts the bytes read.
class ReadWorkload : public Workload {
 public:
  [[nodiscard]] virtual std::size_t bytes() const = 0;
  [[nodiscard]] virtual const void* source() const = 0;
  /// The sum of the buffer's 32-bit words, modulo 2^32, by the last call. Waits for the stream.
  [[nodiscard]] virtual std::uint32_t checksum() const = 0;
};

/// Buffers of `bytes` (a multiple of 4096), or several times the last-level cache for 0, bounded by an eighth of the
/// free memory. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<CopyWorkload> make_copy(const Context& context, std::size_t bytes = 0);
[[nodiscard]] std::unique_ptr<ReadWorkload> make_read(const Context& context, std::size_t bytes = 0);

}  // namespace warpmeter::ceilings
