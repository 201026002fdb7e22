#include "kernels/data_parallel/update.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

using collectives::CollectiveBuffer;

namespace {

/// Elements: every piece but a run's last is a multiple.
constexpr std::int64_t kCut = 64;

/// Neighbouring parameters of one rank, and how far they have been given out.
struct Run {
  std::size_t first = 0, last = 0;
  CollectiveBuffer weights{};
  std::int64_t given = 0;
};

std::vector<std::vector<Run>> runs_of(const Trainee& trainee, const ShardMap& shards) {
  std::vector<std::vector<Run>> of_rank(static_cast<std::size_t>(shards.world_size()));
  for (std::size_t i = 0; i < trainee.parameters().size(); ++i) {
    if (!trainee.parameters()[i].trainable) continue;
    const int owner = shards.owner(i);
    WM_CHECK(owner >= 0, "somebody owns what is trained");
    std::vector<Run>& own = of_rank[static_cast<std::size_t>(owner)];
    if (own.empty() || own.back().last + 1 != i) own.push_back({i, i});
    own.back().last = i;
    own.back().weights = trainee.weights_of(own.back().first, i);
  }
  return of_rank;
}

/// The next piece of a run, of about so many elements, and the parameters that begin in it.
CollectiveBuffer cut(const Trainee& trainee, Run& run, std::int64_t elements, std::vector<std::size_t>& parameters) {
  const std::int64_t left = run.weights.count - run.given;
  const std::int64_t count = left <= elements + elements / 4 ? left : elements;  // no small rest
  for (std::size_t i = run.first; i <= run.last; ++i) {
    const std::int64_t begin = trainee.weights_of(run.first, i).count - trainee.parameters()[i].count;
    if (begin >= run.given && begin < run.given + count) parameters.push_back(i);
  }
  CollectiveBuffer piece = run.weights;
  piece.data = static_cast<char*>(run.weights.data) + run.given * static_cast<std::int64_t>(size_of(piece.dtype));
  piece.count = count;
  run.given += count;
  return piece;
}

}  // namespace

void broadcast_weights(collectives::Communicator& group, const Context& context, const Trainee& trainee) {
  synchronize(context.stream);
  for (const CollectiveBuffer& array : trainee.weight_arrays()) group.broadcast(array, array, 0, context.stream);
}

std::vector<Round> rounds_of(const Trainee& trainee, const ShardMap& shards, const RoundSizes& sizes) {
  std::vector<std::vector<Run>> runs = runs_of(trainee, shards);
  std::vector<std::size_t> next(runs.size(), 0);  // run, by rank
  std::vector<Round> rounds;
  const std::size_t first_bytes = std::max(sizes.first_bytes, kCut * sizeof(float));  // a few bytes would not grow
  for (std::size_t bytes = first_bytes;; bytes = std::min(bytes + bytes / 2, sizes.most_bytes)) {
    Round round;
    bool any = false;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      round.parameters.emplace_back();
      if (next[r] == runs[r].size()) {
        round.pieces.emplace_back();
        continue;
      }
      Run& run = runs[r][next[r]];
      const auto elements = static_cast<std::int64_t>(bytes / size_of(run.weights.dtype));
      round.pieces.push_back(cut(trainee, run, std::max(kCut, elements / kCut * kCut), round.parameters.back()));
      if (run.given == run.weights.count) ++next[r];
      any = true;
    }
    if (!any) return rounds;
    // What is empty is of the others' type.
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (round.pieces[r].count > 0) continue;
      const CollectiveBuffer& other =
          *std::max_element(round.pieces.begin(), round.pieces.end(),
                            [](const CollectiveBuffer& a, const CollectiveBuffer& b) { return a.count < b.count; });
      round.pieces[r] = {nullptr, 0, other.dtype, other.device};
    }
    rounds.push_back(std::move(round));
  }
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
  rounds_ = rounds_of(trainee, *options_.shards, options_.sizes);
  if (!context.device().is_cuda()) return;
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

std::int64_t Update::bytes() const {
  std::size_t sum = 0;
  for (const Round& round : rounds_) {
    for (const CollectiveBuffer& piece : round.pieces) sum += piece.bytes();
  }
  return static_cast<std::int64_t>(sum);
}

void Update::update_own(const Round& round) const {
  const std::vector<std::size_t>& own = round.parameters[static_cast<std::size_t>(group_.rank())];
  if (own.empty()) return;
  about_to_enqueue(context_.stream);
  trainee_.update(own);
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
    for (const Round& round : rounds_) update_own(round);
    const auto begin = std::chrono::steady_clock::now();
    for (const Round& round : rounds_) group_.all_gather_v(round.pieces);
    exposed_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  trainee_.end_update();
}

void Update::step_on_gpu() {
  const StreamView stream = stream_->view();
  // Nothing reads a weight any more once the context's stream has come here.
  sent_->record(context_.stream);
  sent_->block(stream);
  for (std::size_t r = 0; r < rounds_.size(); ++r) {
    update_own(rounds_[r]);
    updated_[r].record(context_.stream);
    updated_[r].block(stream);
    about_to_enqueue(stream);
    works_.push_back(group_.all_gather_v_async(rounds_[r].pieces, stream));
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
