#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "kernels/layers/matmul.hpp"
#include "kernels/runtime/event.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter::transformer {

/// A second stream for work that the main one need not wait for: weight gradients, whose products fill what the chain
/// of input gradients leaves idle. Products go through a Matmul of its own, with the main one's choices.
class SideLane {
 public:
  /// Takes a second workspace from the context's allocator. `matmul` must outlive it. Throws OutOfMemory, DeviceError.
  SideLane(const Context& main, layers::Matmul& matmul);
  /// Waits, where it can: the arrays that it works on are about to go.
  ~SideLane();
  SideLane(const SideLane&) = delete;
  SideLane& operator=(const SideLane&) = delete;

  [[nodiscard]] const Context& context() const { return context_; }
  [[nodiscard]] layers::Matmul& matmul() const { return *matmul_; }

  /// What is enqueued here from now on comes after all that the main stream has been given so far.
  void fork();
  /// What the main stream is given from now on comes after all that was enqueued here before the last turn: so this
  /// lane may be that much behind.
  void turn();
  /// What the main stream is given from now on comes after all that was enqueued here.
  void join();

 private:
  StreamView main_;
  Context context_;
  Event forked_, joined_;
  std::array<Event, 2> turns_;
  std::unique_ptr<layers::Matmul> matmul_;
  bool apart_ = false;   ///< forked and not yet joined
  bool turned_ = false;  ///< a turn since then, the last of turns_[last_turn_]
  std::size_t last_turn_ = 0;
};

}  // namespace warpmeter::transformer
