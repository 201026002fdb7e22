#include "kernels/data_parallel/update.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

using collectives::CollectiveBuffer;

namespace {

/// Elements of the largest piece of a round.
std::int64_t largest(const std::vector<Piece>& round) {
  std::int64_t most = 0;
  for (const Piece& piece : round) most = std::max(most, piece.weights.count);
  return most;
}

}  // namespace

void broadcast_weights(collectives::Communicator& group, const Context& context, const Trainee& trainee) {
  synchronize(context.stream);
  for (const CollectiveBuffer& array : trainee.weight_arrays()) group.broadcast(array, array, 0, context.stream);
}

std::vector<std::vector<Piece>> rounds_of(const Trainee& trainee, const ShardMap& shards, std::size_t most_bytes) {
  std::vector<std::vector<Piece>> of_rank(static_cast<std::size_t>(shards.world_size()));
  std::size_t rounds = 0;
  for (std::size_t i = 0; i < trainee.parameters().size(); ++i) {
    if (!trainee.parameters()[i].trainable) continue;
    const int owner = shards.owner(i);
    WM_CHECK(owner >= 0, "somebody owns what is trained");
    std::vector<Piece>& own = of_rank[static_cast<std::size_t>(owner)];
    const bool goes_on = !own.empty() && own.back().parameters.back() + 1 == i &&
                         trainee.weights_of(own.back().parameters.front(), i).bytes() <= most_bytes;
    if (!goes_on) own.push_back({owner, {}, {}});
    own.back().parameters.push_back(i);
    own.back().weights = trainee.weights_of(own.back().parameters.front(), i);
    rounds = std::max(rounds, own.size());
  }
  std::vector<std::vector<Piece>> result(rounds);
  for (std::size_t r = 0; r < rounds; ++r) {
    for (std::vector<Piece>& own : of_rank) {
      if (r < own.size()) result[r].push_back(std::move(own[r]));
    }
  }
  return result;
}

std::size_t staging_bytes(const std::vector<std::vector<Piece>>& rounds, int world_size) {
  std::size_t bytes = 0;
  for (const std::vector<Piece>& round : rounds) {
    bytes =
        std::max(bytes, static_cast<std::size_t>(largest(round) * world_size) * size_of(round.front().weights.dtype));
  }
  return bytes;
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
  rounds_ = rounds_of(trainee, *options_.shards, options_.most_bytes);
  if (!context.device().is_cuda()) return;
  const std::size_t bytes = staging_bytes(rounds_, group.world_size());
  if (options_.groups_memory) {
    shared_staging_ = group.allocate(bytes);
  } else {
    plain_staging_ = Buffer(context, bytes);
  }
  stream_.emplace(context.device());
  for (std::size_t i = 0; i < rounds_.size(); ++i) updated_.emplace_back(context.device());
  sent_.emplace(context.device());
  before_.emplace(context.device());
  after_.emplace(context.device());
}

Update::~Update() {
  try {
    if (stream_) synchronize(stream_->view());
  } catch (const std::exception&) {  // a broken device is told of elsewhere
  }
}

std::int64_t Update::calls() const {
  if (stream_) return static_cast<std::int64_t>(rounds_.size());
  std::int64_t pieces = 0;
  for (const std::vector<Piece>& round : rounds_) pieces += static_cast<std::int64_t>(round.size());
  return pieces;
}

std::int64_t Update::bytes() const {
  std::size_t sum = 0;
  for (const std::vector<Piece>& round : rounds_) {
    if (stream_) {
      sum += static_cast<std::size_t>(largest(round) * group_.world_size()) * size_of(round.front().weights.dtype);
    } else {
      for (const Piece& piece : round) sum += piece.weights.bytes();
    }
  }
  return static_cast<std::int64_t>(sum);
}

void Update::step() {
  const Range scope("OPTIM_STEP");
  about_to_enqueue(context_.stream);
  trainee_.begin_update();
  exposed_ms_ = 0;
  works_.clear();
  if (!options_.shards) {
    trainee_.update(all_);
  } else if (stream_) {
    step_on_gpu();
  } else {
    for (const std::vector<Piece>& round : rounds_) {
      for (const Piece& piece : round) {
        if (piece.owner == group_.rank()) trainee_.update(piece.parameters);
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    for (const std::vector<Piece>& round : rounds_) {
      for (const Piece& piece : round) group_.broadcast(piece.weights, piece.weights, piece.owner);
    }
    exposed_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  trainee_.end_update();
}

void Update::step_on_gpu() {
  auto* const staging =
      static_cast<char*>(shared_staging_.data() != nullptr ? shared_staging_.data() : plain_staging_.data());
  const StreamView stream = stream_->view();
  // Nothing reads a weight any more once the context's stream has come here.
  sent_->record(context_.stream);
  sent_->block(stream);
  for (std::size_t r = 0; r < rounds_.size(); ++r) {
    const std::vector<Piece>& round = rounds_[r];
    const std::int64_t count = largest(round);
    const DType dtype = round.front().weights.dtype;
    const auto place = [&](int rank) { return staging + rank * count * static_cast<std::int64_t>(size_of(dtype)); };
    const Device device = context_.device();
    for (const Piece& piece : round) {
      if (piece.owner != group_.rank()) continue;
      about_to_enqueue(context_.stream);
      trainee_.update(piece.parameters);
      updated_[r].record(context_.stream);
      updated_[r].block(stream);
      copy_bytes(place(piece.owner), device, piece.weights.data, device, piece.weights.bytes(), stream);
    }
    about_to_enqueue(stream);
    works_.push_back(group_.all_gather_async({place(group_.rank()), count, dtype, device},
                                             {staging, count * group_.world_size(), dtype, device}, stream));
    for (const Piece& piece : round) {
      if (piece.owner == group_.rank()) continue;
      copy_bytes(piece.weights.data, device, place(piece.owner), device, piece.weights.bytes(), stream);
    }
  }
  before_->record(context_.stream);
  sent_->record(stream);
  sent_->block(context_.stream);
  after_->record(context_.stream);
}

void Update::wait() {
  for (const collectives::Work& work : works_) work.wait();
}

double Update::exposed_ms() const {
  return before_ ? elapsed_ms(*before_, *after_) : exposed_ms_;
}

}  // namespace warpmeter::data_parallel
