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

/// Neighbouring parameters that one rank owns.
struct Piece {
  int owner = 0;
  std::vector<std::size_t> parameters;
  collectives::CollectiveBuffer weights;  ///< what their owner sends on
};
/// Pieces of at most `most_bytes` of weights, unless one parameter is larger, in the order in which they are sent:
/// every rank's first, every rank's second, ...; each round as a list. Ranks that own less are missing from the last
/// ones.
[[nodiscard]] std::vector<std::vector<Piece>> rounds_of(const Trainee& trainee, const ShardMap& shards,
                                                        std::size_t most_bytes);
/// Bytes that an Update on GPUs takes to send such rounds.
[[nodiscard]] std::size_t staging_bytes(const std::vector<std::vector<Piece>>& rounds, int world_size);

/// The optimizer's step on one rank, after gradients have been averaged: of all parameters, or with a ShardMap of those
/// that the rank owns, each piece of which is then sent to the others while the next is updated.
///
/// GPU: a round is one all_gather in a stream of its own, through staging memory, so that the links are busy both ways.
/// CPU: a broadcast a piece.
class Update {
 public:
  struct Options {
    std::optional<ShardMap> shards{};                  ///< none: every rank updates everything
    std::size_t most_bytes = std::size_t{25} << 20;    ///< as rounds_of()'s
    bool groups_memory = false;                        ///< staging memory is the group's; collective then
    std::function<void(StreamView)> before_enqueue{};  ///< as ReducerOptions'
  };
  /// All are borrowed. Throws OutOfMemory.
  Update(collectives::Communicator& group, const Context& context, Trainee& trainee, Options options);
  ~Update();
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  void step();
  /// Blocks the host until what was sent is there. Throws CollectiveError.
  void wait();

  // Of one step: calls that send weights, and the bytes of their results.
  [[nodiscard]] std::int64_t calls() const;
  [[nodiscard]] std::int64_t bytes() const;
  /// Of the group's memory.
  [[nodiscard]] std::size_t external_bytes() const { return shared_staging_.bytes(); }
  /// How long the last step kept the context's stream waiting for other ranks' weights. After it has been waited for.
  [[nodiscard]] double exposed_ms() const;

 private:
  void step_on_gpu();
  void about_to_enqueue(StreamView stream) const {
    if (options_.before_enqueue) options_.before_enqueue(stream);
  }

  collectives::Communicator& group_;
  Context context_;
  Trainee& trainee_;
  Options options_;
  std::vector<std::vector<Piece>> rounds_;
  std::vector<std::size_t> all_;
  std::vector<collectives::Work> works_;
  collectives::CommunicatorBuffer shared_staging_;
  Buffer plain_staging_;
  std::optional<CommunicationStream> stream_;
  std::vector<Event> updated_;  ///< by round
  std::optional<Event> sent_, before_, after_;
  double exposed_ms_ = 0;
};

}  // namespace warpmeter::data_parallel
