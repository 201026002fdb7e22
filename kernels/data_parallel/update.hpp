#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/data_parallel/shards.hpp"
#include "kernels/data_parallel/trainee.hpp"
#include "kernels/runtime/event.hpp"

namespace warpmeter::data_parallel {

/// Copies rank 0's weights (and masters) to every rank.
void broadcast_weights(collectives::Communicator& group, const Context& context, const Trainee& trainee);

/// The optimizer's step on one rank, after gradients have been averaged: of all parameters, or with a ShardMap of those
/// that the rank owns, each run of which is then sent to the others while the next is updated.
class Update {
 public:
  struct Options {
    std::optional<ShardMap> shards{};                  ///< none: every rank updates everything
    std::size_t most_bytes = std::size_t{25} << 20;    ///< of weights sent at once, unless one parameter is larger
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

  /// Of one step: what sends weights.
  [[nodiscard]] std::int64_t calls() const { return static_cast<std::int64_t>(pieces_.size()); }
  [[nodiscard]] std::int64_t bytes() const;
  /// How long the last step kept the context's stream waiting for other ranks' weights. After it has been waited for.
  [[nodiscard]] double exposed_ms() const;

 private:
  struct Piece {
    int owner = 0;
    std::vector<std::size_t> parameters;  ///< neighbours
    collectives::CollectiveBuffer weights;
  };
  void cut();

  collectives::Communicator& group_;
  Context context_;
  Trainee& trainee_;
  Options options_;
  std::vector<Piece> pieces_;  ///< in the order in which they are sent: every rank's first, every rank's second, ...
  std::vector<std::size_t> all_;
  std::vector<collectives::Work> works_;
  std::optional<Stream> stream_;
  std::vector<Event> updated_;
  std::optional<Event> sent_, before_, after_;
  double exposed_ms_ = 0;
};

}  // namespace warpmeter::data_parallel
