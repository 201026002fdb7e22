#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/event.hpp"
#include "tools/e2e_bench/configuration.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::e2e_bench {

/// One operation of a phase over all its calls.
struct OperationSum {
  std::string name;
  std::string kind;
  std::int64_t calls = 0;
  double flops = 0, bytes = 0;
  ComputePath path = ComputePath::fp32;
  DType result = DType::fp32;
  double ms = 0;  ///< of all calls in one run of the phase
};

/// What naive and fused attention are made of, as their ranges are named: products, softmax and the rest, a call each.
/// FLOPs count visible pairs, bytes each operand and score once. Empty for other implementations. Their kinds begin
/// with "attention: "; the time of a part is within the time of the attention.
[[nodiscard]] std::vector<OperationSum> attention_parts(const Configuration& configuration, Device device,
                                                        bool backward);
[[nodiscard]] bool is_part(const OperationSum& operation);

/// Times every operation between two events of the stream, and the parts that it is told of. One run at a time:
/// begin_run(), the work, end_run().
class OperationTimer : public transformer::OperationSink, public RangeObserver {
 public:
  explicit OperationTimer(StreamView stream, std::vector<OperationSum> parts = {})
      : stream_(stream), parts_(std::move(parts)) {}
  ~OperationTimer() override { observe_ranges(nullptr); }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  void begin(const transformer::Operation& operation) override;
  void end(const transformer::Operation& operation) override;
  void opened(std::string_view name) override;
  void closed(std::string_view name) override;

  void begin_run();
  /// Waits, and adds the run's times to the samples.
  void end_run();
  /// Medians over the runs, in the order of the first calls.
  [[nodiscard]] std::vector<OperationSum> sums() const;

 private:
  struct Entry {
    OperationSum sum;
    std::vector<double> samples_ms;
  };
  void start(const OperationSum& one_call);
  void stop();

  StreamView stream_;
  std::vector<OperationSum> parts_;
  std::vector<std::pair<Event, Event>> events_;  ///< one pair a call
  std::vector<std::size_t> open_;                ///< calls under way, outermost first
  std::vector<std::size_t> entry_of_;            ///< which entry a call belongs to
  std::size_t next_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// The operations of one phase, from a run without memory: everything but times.
[[nodiscard]] std::vector<OperationSum> planned_operations(const Configuration& configuration, Device device,
                                                           const std::string& phase);
/// Sums by kind ("all matmul") and over all ("all operations").
[[nodiscard]] std::vector<OperationSum> totals(const std::vector<OperationSum>& operations);

/// The one row of a configuration whose operations cannot be told: its attention is not here.
[[nodiscard]] std::unique_ptr<harness::Case> unsupported_operation(const Configuration& configuration, Device device);

/// The rows of --breakdown for one configuration: every operation of every phase asked for, those of a kind together,
/// and all. The first row that runs measures them all.
/// `only`: names of the rows that are wanted; empty: all.
[[nodiscard]] std::vector<std::unique_ptr<harness::Case>> breakdown_cases(const Configuration& configuration,
                                                                          Device device,
                                                                          const std::vector<std::string>& only);
/// The rows of --dtypes: the type of everything that is stored, and of what each operation writes. Nothing runs.
[[nodiscard]] std::vector<std::unique_ptr<harness::Case>> type_cases(const Configuration& configuration, Device device,
                                                                     const std::vector<std::string>& only);
/// The same of the toy (toy_amp.hpp).
[[nodiscard]] std::vector<std::unique_ptr<harness::Case>> toy_type_cases(const Configuration& configuration,
                                                                         Device device,
                                                                         const std::vector<std::string>& only);

}  // namespace warpmeter::e2e_bench
