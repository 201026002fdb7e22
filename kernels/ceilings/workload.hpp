#pragma once

#include <string>

namespace warpmeter::ceilings {

/// One piece of work done in several ways, of which the fastest on a device is its ceiling. Its memory is the
/// allocator's harness memory: in no peak and under no limit. Enqueues on the context's stream; allocates only when
/// made. The context's allocator must outlive it.
class Workload {
 public:
  virtual ~Workload() = default;
  /// FLOPs or bytes of one call, the same for each variant.
  [[nodiscard]] virtual double amount() const = 0;
  [[nodiscard]] virtual int variants() const = 0;
  [[nodiscard]] virtual std::string variant_name(int variant) const = 0;
  virtual void enqueue(int variant) = 0;
};

}  // namespace warpmeter::ceilings
