#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/detail/async_queue.hpp"
#include "kernels/collectives/detail/reduce.hpp"
#include "kernels/runtime/device.hpp"

namespace warpmeter::collectives::detail {

/// What backends of host memory that occupy the calling thread have in common: order between synchronous and
/// asynchronous calls, plain memory, the refusal of other devices. A backend derives and calls stop() in its
/// destructor.
class HostCommunicator : public Communicator {
 public:
  [[nodiscard]] CommunicatorBuffer allocate(std::size_t bytes) override {
    void* const data = ::operator new (bytes > 0 ? bytes : 1, std::align_val_t{kAlignment});
    return {std::shared_ptr<void>(data, [](void* p) { ::operator delete (p, std::align_val_t{kAlignment}); }), bytes};
  }

 protected:
  using Communicator::Communicator;

  void run(const Collective& c) override {
    refuse_other_devices(c);
    queue_.drain();
    execute(c);
  }
  Work start(const Collective& c) override {
    refuse_other_devices(c);
    return queue_.submit([this, c] { execute(c); });
  }
  /// Nothing is under way afterwards.
  void stop() { queue_.drain(); }

  /// Does a collective of host memory; blocks. Any count.
  virtual void execute(const Collective& c) = 0;

 private:
  static constexpr std::size_t kAlignment = 4096;

  void refuse_other_devices(const Collective& c) const {
    if (c.input.device.is_cpu()) return;
    throw CollectiveError(CollectiveFault::unsupported, {rank()},
                          std::string(backend()) + ": " + describe(c) + " on " + warpmeter::name(c.input.device) +
                              "; this backend takes host memory");
  }

  AsyncQueue queue_;
};

/// total[i] = op of total[i] and other[i]: a step of a library's reduction. avg adds.
inline void combine(void* total, const void* other, std::int64_t count, DType dtype, ReduceOp op) {
  const char* const sources[2] = {static_cast<const char*>(total), static_cast<const char*>(other)};
  char* const destination = static_cast<char*>(total);
  reduce({sources, 2, &destination, 1, count, dtype, op == ReduceOp::avg ? ReduceOp::sum : op});
}

/// data[i] /= divisor, for the types that avg sums in their own type: all but int32.
void divide(void* data, std::int64_t count, DType dtype, int divisor);

/// int32 of any address to int64 and back, divided towards zero: avg of int32 sums in 64 bits.
[[nodiscard]] std::vector<std::int64_t> widened(const void* data, std::int64_t count);
void divide_and_narrow(const std::vector<std::int64_t>& sums, int divisor, void* data);

}  // namespace warpmeter::collectives::detail
