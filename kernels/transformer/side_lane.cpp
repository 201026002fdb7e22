#include "kernels/transformer/side_lane.hpp"

#include <exception>

#include "kernels/transformer/detail/side_stream.hpp"

namespace warpmeter::transformer {

SideLane::SideLane(const Context& main, layers::Matmul& matmul)
    : main_(main.stream),
      context_{detail::create_side_stream(main.device()), main.allocator},
      forked_(main.device()),
      joined_(main.device()),
      turns_{Event(main.device()), Event(main.device())},
      matmul_(matmul.beside(context_)) {}

SideLane::~SideLane() {
  try {
    synchronize(context_.stream);
  } catch (const std::exception&) {
    // The device has failed, and whoever uses it next is told.
  }
  matmul_.reset();
  detail::destroy_side_stream(context_.stream);
}

void SideLane::fork() {
  forked_.record(main_);
  forked_.block(context_.stream);
  apart_ = true;
}

void SideLane::turn() {
  if (!apart_) return;
  if (turned_) turns_[last_turn_].block(main_);
  last_turn_ = 1 - last_turn_;
  turns_[last_turn_].record(context_.stream);
  turned_ = true;
}

void SideLane::join() {
  if (!apart_) return;
  turned_ = false;
  joined_.record(context_.stream);
  joined_.block(main_);
  apart_ = false;
}

}  // namespace warpmeter::transformer
