#include "kernels/data_parallel/reducer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

using collectives::CollectiveBuffer;
using collectives::ReduceOp;
using collectives::Work;

namespace {
constexpr std::size_t kNoRange = std::numeric_limits<std::size_t>::max();
}

std::string_view name(Strategy strategy) noexcept {
  constexpr std::array<std::string_view, 4> kNames = {"naive", "flat", "overlap", "bucketed"};
  return kNames[static_cast<std::size_t>(strategy)];
}

/// One range's call of a step.
struct GradientReducer::Call {
  std::size_t missing = 0;           ///< gradients that are not there yet
  std::vector<StreamView> streams;   ///< that they come from
  std::vector<Event> ready;          ///< of each of them, recorded when the last gradient came
  std::optional<Event> begun, done;  ///< in the stream that it runs in
  Work work;
};

GradientReducer::GradientReducer(collectives::Communicator& group, const Context& context, void* gradients, DType dtype,
                                 const GradientPlan& plan, ReducerOptions options)
    : group_(group),
      context_(context),
      gradients_(static_cast<char*>(gradients)),
      dtype_(dtype),
      plan_(plan),
      options_(std::move(options)) {
  switch (options_.strategy) {
    case Strategy::naive:
    case Strategy::overlap:
      ranges_ = plan.one_each();
      break;
    case Strategy::flat:
      ranges_ = plan.all_at_once();
      break;
    case Strategy::bucketed:
      ranges_ = plan.buckets(options_.bucket_bytes);
      break;
  }
  range_of_.assign(plan.parameters().size(), kNoRange);
  calls_.resize(ranges_.size());
  copy_of_.assign(ranges_.size(), nullptr);
  const bool cuda = context.device().is_cuda();
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    for (const std::size_t parameter : ranges_[r].parameters) range_of_[parameter] = r;
    if (cuda) {
      calls_[r].begun.emplace(context.device());
      calls_[r].done.emplace(context.device());
    }
    if (!options_.copy) continue;
    plain_copies_.emplace_back(context, static_cast<std::size_t>(ranges_[r].count) * size_of(dtype));
    copy_of_[r] = plain_copies_.back().data();
    fill_bytes(copy_of_[r], context.device(), 0, plain_copies_.back().bytes(), context.stream);
  }
  if (cuda) {
    if (overlaps()) stream_.emplace(context.device());
    before_.emplace(context.device());
    after_.emplace(context.device());
  }
}

GradientReducer::~GradientReducer() {
  // What is under way writes to arrays that may be about to go.
  try {
    if (stream_) synchronize(stream_->view());
  } catch (const std::exception&) {  // a broken device is told of elsewhere
  }
}

std::int64_t GradientReducer::bytes() const {
  std::int64_t elements = 0;
  for (const GradientPlan::Range& range : ranges_) elements += range.count;
  return elements * static_cast<std::int64_t>(size_of(dtype_));
}

void GradientReducer::begin() {
  on_ = true;
  next_ = 0;
  for (std::size_t r = 0; r < calls_.size(); ++r) {
    calls_[r].missing = ranges_[r].parameters.size();
    calls_[r].streams.clear();
    calls_[r].work = Work();
  }
}

void GradientReducer::gradient_ready(std::size_t parameter, StreamView stream) {
  if (!on_ || !overlaps()) return;
  const std::size_t r = range_of_.at(parameter);
  WM_CHECK(r != kNoRange && calls_[r].missing > 0, "a gradient comes once a step, and is trained");
  Call& call = calls_[r];
  if (std::find(call.streams.begin(), call.streams.end(), stream) == call.streams.end()) call.streams.push_back(stream);
  if (--call.missing > 0) return;
  if (stream_) {
    for (std::size_t i = 0; i < call.streams.size(); ++i) {
      if (i == call.ready.size()) call.ready.emplace_back(context_.device());
      about_to_enqueue(call.streams[i]);
      call.ready[i].record(call.streams[i]);
    }
  }
  send_what_is_ready();
}

void GradientReducer::send_what_is_ready() {
  for (; next_ < calls_.size() && calls_[next_].missing == 0; ++next_) {
    const Call& call = calls_[next_];
    const StreamView stream = stream_ ? stream_->view() : context_.stream;
    if (stream_) {
      about_to_enqueue(stream);
      for (std::size_t i = 0; i < call.streams.size(); ++i) call.ready[i].block(stream);
    }
    send(next_, stream);
  }
}

void GradientReducer::move(std::size_t index, bool in, StreamView stream) const {
  const GradientPlan::Range& range = ranges_[index];
  const auto element = static_cast<std::int64_t>(size_of(dtype_));
  for (const std::size_t parameter : range.parameters) {
    char* const there = gradients_ + plan_.places()[parameter] * element;
    char* const copy = static_cast<char*>(copy_of_[index]) + (plan_.places()[parameter] - range.begin) * element;
    const auto bytes = static_cast<std::size_t>(plan_.parameters()[parameter].count * element);
    copy_bytes(in ? copy : there, context_.device(), in ? there : copy, context_.device(), bytes, stream);
  }
}

void GradientReducer::send(std::size_t index, StreamView stream) {
  const Range scope("ALL_REDUCE");
  Call& call = calls_[index];
  const GradientPlan::Range& range = ranges_[index];
  const bool copied = copy_of_[index] != nullptr;
  char* const data = copied ? static_cast<char*>(copy_of_[index])
                            : gradients_ + range.begin * static_cast<std::int64_t>(size_of(dtype_));
  const CollectiveBuffer buffer(data, range.count, dtype_, context_.device());
  about_to_enqueue(stream);
  if (call.begun) call.begun->record(stream);
  if (copied) move(index, true, stream);
  if (stream.device.is_cuda()) {
    call.work = group_.all_reduce_async(buffer, buffer, ReduceOp::avg, stream);
    if (copied) move(index, false, stream);
    call.done->record(stream);
  } else if (overlaps()) {
    call.work = group_.all_reduce_async(buffer, buffer, ReduceOp::avg);
  } else {
    group_.all_reduce(buffer, buffer, ReduceOp::avg);
    if (copied) move(index, false, stream);
  }
}

void GradientReducer::finish() {
  WM_CHECK(on_, "begin() comes first");
  const auto begin = std::chrono::steady_clock::now();
  if (before_) {
    about_to_enqueue(context_.stream);
    before_->record(context_.stream);
  }
  if (overlaps()) {
    // A gradient that never came is not missed for ever.
    for (Call& call : calls_) {
      if (call.missing == 0) continue;
      call.missing = 0;
      call.streams.assign(1, context_.stream);
      if (!stream_) continue;
      if (call.ready.empty()) call.ready.emplace_back(context_.device());
      call.ready.front().record(context_.stream);
    }
    send_what_is_ready();
    if (stream_) {
      if (!calls_.empty()) calls_.back().done->block(context_.stream);
    } else {
      for (std::size_t r = 0; r < calls_.size(); ++r) {
        calls_[r].work.wait();
        if (copy_of_[r] != nullptr) move(r, false, context_.stream);
      }
    }
  } else if (options_.strategy == Strategy::naive) {
    for (std::size_t r = calls_.size(); r-- > 0;) send(r, context_.stream);  // in the order of the parameters
  } else {
    for (std::size_t r = 0; r < calls_.size(); ++r) send(r, context_.stream);
  }
  if (after_) {
    about_to_enqueue(context_.stream);
    after_->record(context_.stream);
  }
  exposed_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  on_ = false;
}

void GradientReducer::wait() {
  for (const Call& call : calls_) call.work.wait();
}

void GradientReducer::communicate() {
  for (std::size_t r = 0; r < calls_.size(); ++r) {
    const GradientPlan::Range& range = ranges_[r];
    char* const data = copy_of_[r] != nullptr ? static_cast<char*>(copy_of_[r])
                                              : gradients_ + range.begin * static_cast<std::int64_t>(size_of(dtype_));
    const CollectiveBuffer buffer(data, range.count, dtype_, context_.device());
    if (context_.device().is_cuda()) {
      calls_[r].work = group_.all_reduce_async(buffer, buffer, ReduceOp::avg, context_.stream);
    } else {
      group_.all_reduce(buffer, buffer, ReduceOp::avg);
    }
  }
}

double GradientReducer::exposed_ms() const {
  return before_ ? elapsed_ms(*before_, *after_) : exposed_ms_;
}

std::optional<double> GradientReducer::busy_ms() const {
  if (!before_) return std::nullopt;
  double sum = 0;
  for (const Call& call : calls_) sum += elapsed_ms(*call.begun, *call.done);
  return sum;
}

}  // namespace warpmeter::data_parallel
