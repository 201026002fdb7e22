#include "kernels/data_parallel/update.hpp"

#include <chrono>
#include <utility>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

using collectives::CollectiveBuffer;

void broadcast_weights(collectives::Communicator& group, const Context& context, const Trainee& trainee) {
  synchronize(context.stream);
  for (const CollectiveBuffer& array : trainee.weight_arrays()) group.broadcast(array, array, 0, context.stream);
}

Update::Update(collectives::Communicator& group, const Context& context, Trainee& trainee, Options options)
    : group_(group), context_(context), trainee_(trainee), options_(std::move(options)) {
  for (std::size_t i = 0; i < trainee.parameters().size(); ++i) {
    if (trainee.parameters()[i].trainable) all_.push_back(i);
  }
  if (!options_.shards) return;
  WM_CHECK(
      options_.shards->size() == trainee.parameters().size() && options_.shards->world_size() == group.world_size(),
      "the shards are of this model and group");
  cut();
  if (!context.device().is_cuda()) return;
  stream_.emplace(context.device());
  for (std::size_t i = 0; i < pieces_.size(); ++i) updated_.emplace_back(context.device());
  sent_.emplace(context.device());
  before_.emplace(context.device());
  after_.emplace(context.device());
}

Update::~Update() {
  try {
    if (stream_) synchronize(*stream_);
  } catch (const std::exception&) {  // a broken device is told of elsewhere
  }
}

void Update::cut() {
  std::vector<std::vector<Piece>> of_rank(static_cast<std::size_t>(group_.world_size()));
  for (const std::size_t i : all_) {
    const int owner = options_.shards->owner(i);
    WM_CHECK(owner >= 0, "somebody owns what is trained");
    std::vector<Piece>& own = of_rank[static_cast<std::size_t>(owner)];
    if (!own.empty() && own.back().parameters.back() + 1 == i) {
      const std::size_t first = own.back().parameters.front();
      if (trainee_.weights_of(first, i).bytes() <= options_.most_bytes) {
        own.back().parameters.push_back(i);
        continue;
      }
    }
    own.push_back({owner, {i}, {}});
  }
  for (std::size_t round = 0, left = all_.size(); left > 0; ++round) {
    for (std::vector<Piece>& own : of_rank) {
      if (round >= own.size()) continue;
      Piece& piece = own[round];
      left -= piece.parameters.size();
      piece.weights = trainee_.weights_of(piece.parameters.front(), piece.parameters.back());
      pieces_.push_back(std::move(piece));
    }
  }
}

std::int64_t Update::bytes() const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces_) sum += static_cast<std::int64_t>(piece.weights.bytes());
  return sum;
}

void Update::step() {
  const Range scope("OPTIM_STEP");
  const auto about_to_enqueue = [&](StreamView stream) {
    if (options_.before_enqueue) options_.before_enqueue(stream);
  };
  about_to_enqueue(context_.stream);
  trainee_.begin_update();
  exposed_ms_ = 0;
  if (!options_.shards) {
    trainee_.update(all_);
    trainee_.end_update();
    return;
  }
  works_.clear();
  if (!stream_) {
    for (const Piece& piece : pieces_) {
      if (piece.owner == group_.rank()) trainee_.update(piece.parameters);
    }
    const auto begin = std::chrono::steady_clock::now();
    for (const Piece& piece : pieces_) group_.broadcast(piece.weights, piece.weights, piece.owner);
    exposed_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    trainee_.end_update();
    return;
  }
  // Nothing reads a weight any more once the context's stream has come here.
  sent_->record(context_.stream);
  sent_->block(*stream_);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.owner == group_.rank()) {
      about_to_enqueue(context_.stream);
      trainee_.update(piece.parameters);
      updated_[i].record(context_.stream);
      updated_[i].block(*stream_);
    }
    about_to_enqueue(*stream_);
    works_.push_back(group_.broadcast_async(piece.weights, piece.weights, piece.owner, *stream_));
  }
  before_->record(context_.stream);
  sent_->record(*stream_);
  sent_->block(context_.stream);
  after_->record(context_.stream);
  trainee_.end_update();
}

void Update::wait() {
  for (const collectives::Work& work : works_) work.wait();
}

double Update::exposed_ms() const {
  return before_ ? elapsed_ms(*before_, *after_) : exposed_ms_;
}

}  // namespace warpmeter::data_parallel
