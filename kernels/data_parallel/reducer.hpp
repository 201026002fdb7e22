#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/data_parallel/communication_stream.hpp"
#include "kernels/data_parallel/plan.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/event.hpp"
#include "kernels/transformer/gradients.hpp"

namespace warpmeter::data_parallel {

/// When and in which pieces gradients are averaged over the ranks.
enum class Strategy : std::uint8_t {
  naive,     ///< after the backward, a call for each parameter, each after the one before
  flat,      ///< after the backward, all in one call
  overlap,   ///< a call for each parameter as soon as its gradient is there, beside the rest of the backward
  bucketed,  ///< a call for each bucket as soon as its last gradient is there, beside the rest of the backward
};
/// "naive", "flat", "overlap", "bucketed".
[[nodiscard]] std::string_view name(Strategy strategy) noexcept;

struct ReducerOptions {
  Strategy strategy = Strategy::bucketed;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Gradients are copied into an array of each call's own and back, as where they live one by one.
  bool copy = false;
  /// Called before anything is enqueued on a stream: for tests that delay streams.
  std::function<void(StreamView)> before_enqueue{};
};

/// Averages a model's gradients over the ranks of a group: every rank gets the same bits.
///
/// GPU: calls that overlap run on a stream of their own. Each waits for the streams that its gradients come from, and
/// the context's stream waits for all of them in finish(). CPU: such calls are asynchronous ones of the group.
/// Ranks make the calls in one order, whatever order gradients come in.
class GradientReducer final : public transformer::GradientObserver {
 public:
  /// `gradients`: an array of plan.elements() on the context's device. All are borrowed. Throws OutOfMemory for the
  /// arrays that `copy` needs.
  GradientReducer(collectives::Communicator& group, const Context& context, void* gradients, DType dtype,
                  const GradientPlan& plan, ReducerOptions options);
  ~GradientReducer() override;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The gradients of the backward that comes are to be averaged. Without it they are left alone: micro-batches whose
  /// gradients add up.
  void begin();
  void gradient_ready(std::size_t parameter, StreamView stream) override;
  /// After the backward: what follows in the context's stream (on the CPU: in time) sees averages. Throws
  /// CollectiveError.
  void finish();
  /// Blocks the host until the calls are done. Throws CollectiveError.
  void wait();

  /// The calls alone, one after the other, in the context's stream.
  void communicate();

  /// Of one step.
  [[nodiscard]] std::int64_t calls() const { return static_cast<std::int64_t>(ranges_.size()); }
  [[nodiscard]] std::int64_t bytes() const;
  /// How long the last finish() kept the context's stream (the CPU's thread) waiting: communication that nothing hid.
  /// After the stream has been waited for.
  [[nodiscard]] double exposed_ms() const;
  /// Sum over the last step's calls of the time that each had its stream, waiting for other ranks included. GPU only.
  [[nodiscard]] std::optional<double> busy_ms() const;

 private:
  struct Call;
  void send_what_is_ready();
  void send(std::size_t index, StreamView stream);
  void move(std::size_t index, bool in, StreamView stream) const;
  [[nodiscard]] bool overlaps() const {
    return options_.strategy == Strategy::overlap || options_.strategy == Strategy::bucketed;
  }
  void about_to_enqueue(StreamView stream) const {
    if (options_.before_enqueue) options_.before_enqueue(stream);
  }

  collectives::Communicator& group_;
  Context context_;
  char* gradients_;
  DType dtype_;
  const GradientPlan& plan_;
  ReducerOptions options_;
  std::vector<GradientPlan::Range> ranges_;
  std::vector<std::size_t> range_of_;  ///< by parameter
  std::vector<Call> calls_;            ///< by range
  std::vector<Buffer> plain_copies_;
  std::vector<void*> copy_of_;  ///< by range; null without copies
  std::optional<CommunicationStream> stream_;
  std::optional<Event> before_, after_;
  bool on_ = false;
  std::size_t next_ = 0;  ///< range to be sent
  double exposed_ms_ = 0;
};

}  // namespace warpmeter::data_parallel
