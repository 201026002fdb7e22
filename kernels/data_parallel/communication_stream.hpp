#pragma once

#include "kernels/runtime/stream.hpp"

namespace warpmeter::data_parallel {

/// A GPU's stream for communication beside computation. Its kernels go first where multiprocessors become free: a
/// collective that has begun on some of the ranks only, or with some of its blocks, keeps multiprocessors busy for
/// nothing.
class CommunicationStream {
 public:
  /// Throws DeviceError. CUDA only.
  explicit CommunicationStream(Device device);
  ~CommunicationStream();
  CommunicationStream(const CommunicationStream&) = delete;
  CommunicationStream& operator=(const CommunicationStream&) = delete;

  [[nodiscard]] StreamView view() const noexcept { return view_; }

 private:
  StreamView view_;
};

}  // namespace warpmeter::data_parallel
