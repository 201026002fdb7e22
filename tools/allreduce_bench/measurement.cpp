#include "tools/allreduce_bench/measurement.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/core.h>

#include "kernels/collectives/control.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tools/allreduce_bench/meter.hpp"
#include "tools/allreduce_bench/pattern.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/timer.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::allreduce_bench {
namespace {

using collectives::CollectiveBuffer;
using collectives::CollectiveKind;
using collectives::Communicator;
using harness::launch::CallWatch;
using harness::launch::Vote;

constexpr unsigned char kPoison = 0x7F;  // a NaN or a number that no input sums up to, in every type
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kFewInARow = 20;
constexpr std::int64_t kMostInARow = 1000;
constexpr double kRowMilliseconds = 10;

/// A rank's arrays. In place they share memory: `whole` holds the larger one, the other is the rank's part of it.
class Arrays {
 public:
  Arrays(const RankAtWork& rank, const Configuration& c) {
    const auto element = static_cast<std::int64_t>(size_of(c.dtype));
    const std::int64_t input = c.input_elements(), output = c.output_elements();
    const Device device = rank.session.context().device();
    if (c.in_place) {
      char* const whole = take(rank, c, std::max(input, output) * element);
      const std::int64_t part = rank.group.rank() * std::min(input, output) * element;
      input_ = {whole + (input < output ? part : 0), input, c.dtype, device};
      output_ = {whole + (output < input ? part : 0), output, c.dtype, device};
    } else {
      input_ = {take(rank, c, input * element), input, c.dtype, device};
      output_ = {take(rank, c, output * element), output, c.dtype, device};
    }
  }
  [[nodiscard]] const CollectiveBuffer& input() const { return input_; }
  [[nodiscard]] const CollectiveBuffer& output() const { return output_; }

 private:
  char* take(const RankAtWork& rank, const Configuration& c, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (c.buffers == Buffers::registered) {
      registered_.push_back(rank.group.allocate(size));
      return static_cast<char*>(registered_.back().data());
    }
    plain_.emplace_back(rank.session.context(), size);
    return static_cast<char*>(plain_.back().data());
  }

  std::vector<collectives::CommunicatorBuffer> registered_;
  std::vector<Buffer> plain_;
  CollectiveBuffer input_, output_;
};

/// One row on one rank.
class Row {
 public:
  Row(const RankAtWork& rank, const Configuration& configuration)
      : rank_(rank),
        configuration_(configuration),
        meter_(make_meter(rank.session, rank.group)),
        call_([this](StreamView stream) { enqueue(stream); }) {}

  Outcome run();

 private:
  enum class Command : std::int32_t { end, warm, sample, in_a_row };
  class GroupTimer;

  void allocate();
  void enqueue(StreamView stream) const;
  void fill();
  Vote check();
  void sample(Outcome& outcome);
  void follow();
  void report(Outcome& outcome, const harness::Samples& samples, double in_a_row_ms);

  [[nodiscard]] bool leads() const { return rank_.control.rank() == 0; }
  void tell(Command command, std::int64_t calls);
  void warm() {
    rank_.watch.again();
    meter_->run(call_);
  }
  /// The slowest rank's time; rank 0 also learns how far apart the ranks arrived.
  double timed(std::int64_t calls);

  const RankAtWork& rank_;
  const Configuration& configuration_;
  std::unique_ptr<Meter> meter_;
  Meter::Call call_;
  std::optional<Arrays> arrays_;
  std::optional<Pattern> pattern_;
  std::int64_t wrong_ = 0;
  std::vector<double> skews_ms_;
};

/// Rank 0's timer: each of its readings is one of all ranks.
class Row::GroupTimer final : public harness::detail::Timer {
 public:
  explicit GroupTimer(Row& row) : row_(row) {}
  void run(const harness::Phase& /*phase*/) override {
    row_.tell(Command::warm, 1);
    row_.warm();
  }
  harness::detail::Reading sample(const harness::Phase& /*phase*/, std::int64_t calls) override {
    row_.tell(Command::sample, calls);
    harness::detail::Reading reading;
    reading.milliseconds = row_.timed(calls);
    return reading;
  }
  [[nodiscard]] std::int64_t least_warm_up() const override { return row_.meter_->least_warm_up(); }

 private:
  Row& row_;
};

void Row::enqueue(StreamView stream) const {
  const Configuration& c = configuration_;
  Communicator& group = rank_.group;
  const bool sync = stream.device.is_cpu();
  if (c.kind == CollectiveKind::barrier) return sync ? group.barrier() : void(group.barrier_async(stream));
  const CollectiveBuffer& in = arrays_->input();
  const CollectiveBuffer& out = arrays_->output();
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      sync ? group.all_reduce(in, out, c.op) : void(group.all_reduce_async(in, out, c.op, stream));
      break;
    case CollectiveKind::broadcast:
      sync ? group.broadcast(in, out, 0) : void(group.broadcast_async(in, out, 0, stream));
      break;
    case CollectiveKind::all_gather:
      sync ? group.all_gather(in, out) : void(group.all_gather_async(in, out, stream));
      break;
    case CollectiveKind::reduce_scatter:
      sync ? group.reduce_scatter(in, out, c.op) : void(group.reduce_scatter_async(in, out, c.op, stream));
      break;
    case CollectiveKind::barrier:
      break;
  }
}

/// The inputs, and in the output something that no result is.
void Row::fill() {
  const Context context = rank_.session.context();
  const auto element = static_cast<std::int64_t>(size_of(configuration_.dtype));
  const CollectiveBuffer& in = arrays_->input();
  const CollectiveBuffer& out = arrays_->output();
  const int me = rank_.group.rank();
  fill_bytes(out.data, out.device, kPoison, out.bytes(), context.stream);
  // A broadcast reads the root's input alone.
  if (configuration_.kind == CollectiveKind::broadcast && me != 0) return;
  if (in.device.is_cpu()) return pattern_->write_input(me, 0, in.count, static_cast<char*>(in.data));
  std::vector<char> piece(static_cast<std::size_t>(std::min<std::int64_t>(kPieceBytes, in.count * element)));
  const auto most = static_cast<std::int64_t>(piece.size()) / element;
  for (std::int64_t at = 0; at < in.count; at += most) {
    const std::int64_t count = std::min(most, in.count - at);
    pattern_->write_input(me, at, count, piece.data());
    copy_bytes(static_cast<char*>(in.data) + at * element, in.device, piece.data(), Device::cpu(),
               static_cast<std::size_t>(count * element), context.stream);
    synchronize(context.stream);
  }
}

/// One call whose result is compared, element by element.
Vote Row::check() {
  if (configuration_.kind == CollectiveKind::barrier) {
    warm();
    return {};
  }
  fill();
  synchronize(rank_.session.context().stream);
  warm();
  const auto element = static_cast<std::int64_t>(size_of(configuration_.dtype));
  const CollectiveBuffer& out = arrays_->output();
  const int me = rank_.group.rank();
  Pattern::Difference difference;
  if (out.device.is_cpu()) {
    difference = pattern_->compare_output(me, 0, out.count, static_cast<const char*>(out.data));
  } else {
    std::vector<char> piece(static_cast<std::size_t>(std::min<std::int64_t>(kPieceBytes, out.count * element)));
    const auto most = static_cast<std::int64_t>(piece.size()) / element;
    for (std::int64_t at = 0; at < out.count; at += most) {
      const std::int64_t count = std::min(most, out.count - at);
      copy_bytes(piece.data(), Device::cpu(), static_cast<const char*>(out.data) + at * element, out.device,
                 static_cast<std::size_t>(count * element), rank_.session.context().stream);
      synchronize(rank_.session.context().stream);
      const Pattern::Difference here = pattern_->compare_output(me, at, count, piece.data());
      if (difference.wrong == 0) difference.first = here.first;
      difference.wrong += here.wrong;
    }
  }
  std::int64_t all = 0;
  for (const std::string& count : collectives::all_gather_bytes(rank_.control, std::to_string(difference.wrong))) {
    all += std::stoll(count);
  }
  wrong_ = std::max(wrong_, all);
  Vote mine;
  if (difference.wrong > 0) {
    mine = {reports::Status::mismatch,
            fmt::format("{} of {} elements are wrong; {}", difference.wrong, out.count, difference.first)};
  }
  return vote(rank_.control, mine);
}

void Row::tell(Command command, std::int64_t calls) {
  std::array<std::int32_t, 2> words{static_cast<std::int32_t>(command), static_cast<std::int32_t>(calls)};
  const CollectiveBuffer buffer(words.data(), 2, DType::int32);
  rank_.watch.again();
  rank_.control.broadcast(buffer, buffer, 0);
}

/// Rank 0 leads.
void Row::follow() {
  for (;;) {
    std::array<std::int32_t, 2> words{};
    const CollectiveBuffer buffer(words.data(), 2, DType::int32);
    rank_.watch.again();
    rank_.control.broadcast(buffer, buffer, 0);
    switch (static_cast<Command>(words[0])) {
      case Command::warm:
        warm();
        break;
      case Command::sample:
      case Command::in_a_row:
        (void)timed(words[1]);
        break;
      case Command::end:
        return;
    }
  }
}

double Row::timed(std::int64_t calls) {
  Communicator& control = rank_.control;
  rank_.watch.again();
  const Meter::Reading mine = meter_->time(call_, calls, [&] { control.barrier(); });
  const auto ranks = static_cast<std::size_t>(control.world_size());
  std::vector<Meter::Reading> all(ranks);
  static_assert(sizeof(Meter::Reading) == 16);
  std::array<std::int32_t, 4> words;
  std::memcpy(words.data(), &mine, sizeof(mine));
  control.all_gather({words.data(), 4, DType::int32}, {all.data(), static_cast<std::int64_t>(ranks) * 4, DType::int32});
  double slowest = 0;
  std::int64_t first = all[0].arrival_ns, last = first;
  for (const Meter::Reading& reading : all) {
    slowest = std::max(slowest, reading.milliseconds);
    first = std::min(first, reading.arrival_ns);
    last = std::max(last, reading.arrival_ns);
  }
  skews_ms_.push_back(static_cast<double>(last - first) * 1e-6);
  return slowest;
}

void Row::sample(Outcome& outcome) {
  if (!leads()) return follow();
  const harness::Settings& settings = rank_.session.settings();
  harness::Sampler sampler(std::make_unique<GroupTimer>(*this), harness::detail::steady_clock(), settings,
                           [this](const std::string& text) { rank_.session.warn(text); });
  harness::Phase phase;
  phase.enqueue = [] {};  // the timer knows what to call
  const harness::Samples samples = sampler.measure(phase);
  // As nccl-tests has it: 20 calls, more where they are short; a quarter of what a phase may take at most.
  const double median_ms = std::max(samples.statistics().median_ms, 1e-6);
  const auto wanted = std::clamp(static_cast<std::int64_t>(kRowMilliseconds / median_ms), kFewInARow, kMostInARow);
  const auto fitting = static_cast<std::int64_t>(settings.max_time_s * 250 / median_ms);
  const std::int64_t calls = std::max<std::int64_t>(2, std::min(wanted, fitting));
  const std::vector<double> skews = skews_ms_;
  tell(Command::in_a_row, calls);
  const double in_a_row_ms = timed(calls) / static_cast<double>(calls);
  skews_ms_ = skews;
  tell(Command::end, 0);
  report(outcome, samples, in_a_row_ms);
}

void Row::report(Outcome& outcome, const harness::Samples& samples, double in_a_row_ms) {
  const harness::Statistics s = samples.statistics();
  reports::Object& f = outcome.figures;
  f.set("median_ms", s.median_ms);
  f.set("mean_ms", s.mean_ms);
  f.set("min_ms", s.min_ms);
  f.set("p95_ms", s.p95_ms);
  f.set("p99_ms", s.p99_ms);
  f.set("stdev_ms", s.stdev_ms);
  f.set("noise", s.noise);
  f.set("n", static_cast<std::int64_t>(s.n));
  f.set("stop", name(samples.stop));
  f.set("call_samples_ms", samples.milliseconds);
  const harness::Statistics skew = harness::summarize(skews_ms_);
  // Over several hosts there are several clocks.
  f.set("skew_mean_ms", rank_.one_host ? reports::Value(skew.mean_ms) : reports::Value());
  f.set("skew_max_ms", rank_.one_host ? reports::Value(skew.max_ms) : reports::Value());
  f.set("in_a_row_mean_ms", in_a_row_ms);

  const Configuration& c = configuration_;
  const double bytes = static_cast<double>(c.elements()) * static_cast<double>(size_of(c.dtype));
  const double factor = collectives::bus_factor(c.kind, c.world_size);
  const bool moves = bytes > 0 && s.median_ms > 0;
  const auto rate = [&](double amount, double unit) {
    return moves && amount > 0 ? reports::Value(amount / (s.median_ms * 1e-3) / unit) : reports::Value();
  };
  f.set("algo_GiBps", rate(factor * bytes, 1024.0 * 1024.0 * 1024.0));
  f.set("algbw_gbps", rate(bytes, 1e9));
  f.set("busbw_gbps", rate(factor * bytes, 1e9));
}

Outcome Row::run() {
  const harness::Settings& settings = rank_.session.settings();
  Outcome outcome;
  const auto ends = [&](const Vote& v) {
    outcome.status = v.status;
    outcome.reason = v.reason;
    return v.status != reports::Status::ok;
  };

  Vote mine;
  try {
    if (configuration_.kind != CollectiveKind::barrier) {
      arrays_.emplace(rank_, configuration_);
      pattern_.emplace(configuration_, settings.seed);
    }
  } catch (const OutOfMemory& e) {
    mine = {reports::Status::oom, fmt::format("requested {}, free {}, limit {}", harness::format_size(e.requested()),
                                              harness::format_size(e.free()), harness::format_size(e.limit()))};
  } catch (const std::bad_alloc&) {
    mine = {reports::Status::oom, "the host's memory ran out (std::bad_alloc)"};
  }
  const CallWatch::Scope scope(rank_.watch, describe(configuration_));
  if (ends(vote(rank_.control, mine))) return outcome;

  if (settings.check) {
    if (ends(check())) {
      outcome.figures.set("wrong", wrong_);
      return outcome;
    }
  } else if (configuration_.kind != CollectiveKind::barrier) {
    fill();
  }
  sample(outcome);
  if (settings.check) {
    ends(check());  // after many calls, too: what goes wrong once in a while may have shown by now
    outcome.figures.set("wrong", wrong_);
  }
  return outcome;
}

}  // namespace

Outcome measure(const RankAtWork& rank, const Configuration& configuration) {
  return Row(rank, configuration).run();
}

}  // namespace warpmeter::allreduce_bench
