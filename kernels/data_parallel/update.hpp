#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/data_parallel/communication_stream.hpp"
#include "kernels/data_parallel/shards.hpp"
#include "kernels/data_parallel/trainee.hpp"
#include "kernels/runtime/event.hpp"

namespace warpmeter::data_parallel {

/// Copies rank 0's weights (and masters) to every rank.
void broadcast_weights(collectives::Communicator& group, const Context& context, const Trainee& trainee);

/// What every rank sends of its weights in one call.
struct Round {
  std::vector<collectives::CollectiveBuffer> pieces;  ///< by rank; empty where a rank has no more
  /// By rank, ascending: to be updated before its piece is sent, after those of the rounds before. A parameter is in
  /// the round in which it begins, wherever it ends.
  std::vector<std::vector<std::size_t>> parameters;
};
/// How many bytes a piece of the first round has, and of one that is not to grow any further.
struct RoundSizes {
  std::size_t first_bytes = std::size_t{4} << 20;
  std::size_t most_bytes = std::size_t{512} << 20;
};
/// All trained weights once. Pieces are cut where the size says, without regard to parameters, so that all ranks send
/// as much; only a run of neighbouring parameters ends a piece early. Each round may be half as large again as the one
/// before: the first one is soon updated and sent, and while a round is sent that much more is updated, at less than
/// what a link takes for it, so that the link need not wait, in few calls.
[[nodiscard]] std::vector<Round> rounds_of(const Trainee& trainee, const ShardMap& shards, const RoundSizes& sizes);

/// The optimizer's step on one rank, after gradients have been averaged: of all parameters, or with a ShardMap of those
/// that the rank owns, each piece of which is then sent to the others, from where it lies to where it belongs, while
/// the next is updated.
///
/// GPU: what is sent has a stream of its own, which goes first where multiprocessors become free. Updates are not held
/// back: the link is what a step waits for, and what they take from it they take at any pace.
/// CPU: the updates, then what is sent.
class Update {
 public:
  struct Options {
    std::optional<ShardMap> shards{};  ///< none: every rank updates everything
    RoundSizes sizes{};
    std::function<void(StreamView)> before_enqueue{};  ///< as ReducerOptions'
  };
  /// All are borrowed.
  Update(collectives::Communicator& group, const Context& context, Trainee& trainee, Options options);
  ~Update();
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  void step();
  /// Blocks the host until what was sent is there. Throws CollectiveError.
  void wait();

  // Of one step: calls that send weights, and the bytes that all ranks send together.
  [[nodiscard]] std::int64_t calls() const { return static_cast<std::int64_t>(rounds_.size()); }
  [[nodiscard]] std::int64_t bytes() const;
  /// How long the last step kept the context's stream waiting for other ranks' weights. After it has been waited for.
  [[nodiscard]] double exposed_ms() const;

 private:
  void update_own(const Round& round) const;
  void step_on_gpu();
  void about_to_enqueue(StreamView stream) const {
    if (options_.before_enqueue) options_.before_enqueue(stream);
  }

  collectives::Communicator& group_;
  Context context_;
  Trainee& trainee_;
  Options options_;
  std::vector<Round> rounds_;
  std::vector<std::size_t> all_;
  std::vector<collectives::Work> works_;
  std::optional<CommunicationStream> stream_;
  std::vector<Event> updated_;  ///< by round
  std::optional<Event> sent_, before_, after_;
  double exposed_ms_ = 0;
};

}  // namespace warpmeter::data_parallel
