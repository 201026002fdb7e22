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

/// Reads one buffer and writes another, each of its own size: what plain code does in place of a kernel with as many
/// bytes of operands and of results. As much as the smaller one holds is copied; the rest of the larger one is only
/// read and added up, or only written (with numbers that count up: no constants), evenly mixed with the copying.
/// amount() counts bytes read plus bytes written.
///
/// As the copy does it on each device; CPU: what is not copied as one or several streams a thread, and what takes less
/// than 64 KiB of either buffer on the calling thread alone.
class TrafficWorkload : public Workload {
 public:
  [[nodiscard]] virtual std::size_t read_bytes() const = 0;     ///< of the source
  [[nodiscard]] virtual std::size_t written_bytes() const = 0;  ///< of the destination
  [[nodiscard]] virtual const void* source() const = 0;         ///< random data; null without bytes to read
  /// Source's cache lines in order, with others between them where the destination is larger and without some of them
  /// where it is smaller; null without bytes to write.
  [[nodiscard]] virtual void* destination() const = 0;
  /// The sum of the 32-bit words that were read and not copied, modulo 2^32, by the last call. Waits for the stream.
  [[nodiscard]] virtual std::uint32_t checksum() const = 0;
};

/// Buffers of `bytes` (a multiple of 4096), or several times the last-level cache for 0, bounded by an eighth of the
/// free memory. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<CopyWorkload> make_copy(const Context& context, std::size_t bytes = 0);
[[nodiscard]] std::unique_ptr<ReadWorkload> make_read(const Context& context, std::size_t bytes = 0);
/// Any numbers of bytes, not both 0; rounded up to whole cache lines of 64. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<TrafficWorkload> make_traffic(const Context& context, std::size_t read_bytes,
                                                            std::size_t written_bytes);

}  // namespace warpmeter::ceilings
