#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/stream.hpp"

/// What every implementation of attention has to get right, on any device: the same lists for all. A test program takes
/// the whole suite with WM_ATTENTION_CONFORMANCE, or calls its parts.
namespace warpmeter::attention::conformance {

/// How operands lie in memory.
enum class Layout {
  bhsd,    ///< dense (batch, heads, rows, head_dim)
  bshd,    ///< dense (batch, rows, heads, head_dim)
  padded,  ///< bhsd with rows and columns beyond the valid ones: NaN in inputs, guarded in outputs
};

/// What q, k, v and d_o hold.
enum class Values {
  normal,          ///< standard normal
  large_scores,    ///< exact scores between about -1e4 and 1e4: nearly one-hot rows
  negative_lse,    ///< exact scores around -200: a key padded in with score 0 would take everything
  very_negative,   ///< exact scores around -1e4: below any finite start of a running maximum
  infinite_key,    ///< normal, but the last key is -inf in K and inf in V
  nan_query,       ///< normal, but the last query is NaN
  inexact_scores,  ///< scores to about 1e4 whose sums round in fp32; for 16-bit types, fp32 has no digits left for them
};

struct Case {
  AttentionProblem problem;
  Layout layout = Layout::bhsd;
  Values values = Values::normal;
  double work_budget = 4e9;  ///< of the verifier
  bool fp32_scores = false;  ///< only for implementations that have scores in fp32: stored, these mean nothing
};
[[nodiscard]] std::string describe(const Case& c);

enum class Extent {
  thinned,  ///< every length, head dimension, type, grouping and layout, but not every combination: seconds
  whole,    ///< lengths x head dimensions x types x causal, groupings in turn: minutes, label long
};

/// The implementation under test with what it runs on.
class Subject {
 public:
  Subject(DeviceKind kind, std::string_view implementation);
  /// One that is not registered; it must outlive the subject.
  explicit Subject(const Implementation& implementation);

  [[nodiscard]] const Implementation& implementation() const { return *implementation_; }
  /// Whether the suite can run: a device of the kind is there. Else the reason.
  [[nodiscard]] std::string missing() const { return missing_; }
  [[nodiscard]] Context context() const { return {stream_->view(), allocator_.get()}; }
  [[nodiscard]] CachingAllocator& allocator() const { return *allocator_; }

 private:
  const Implementation* implementation_ = nullptr;
  std::string missing_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
};

/// Lists of cases; those that the implementation does not support are skipped by run().
[[nodiscard]] std::vector<Case> length_cases(Extent extent);
[[nodiscard]] std::vector<Case> head_dim_cases();
[[nodiscard]] std::vector<Case> group_cases();
[[nodiscard]] std::vector<Case> layout_cases();
[[nodiscard]] std::vector<Case> value_cases();

/// Runs forward and backward on poisoned outputs, compares O, LSE, dQ, dK and dV with the reference, and looks for
/// writes outside the outputs and for memory that was not given back. Success too when the case is not supported.
[[nodiscard]] testing::AssertionResult run(const Subject& subject, const Case& c);
/// run() over a list; fails when the implementation supports none of it. What the outputs use of their bounds at most
/// is in gtest's report (--gtest_output), "bf16_dv" and the like.
void run_all(const Subject& subject, const std::vector<Case>& cases);

/// Same input, same bits: twice, for other numbers of threads, and with or without a backward to come.
void check_same_bits(const Subject& subject);
/// Allocator peaks are exactly what memory_plan() says.
void check_memory_plan(const Subject& subject);
/// Without the memory OutOfMemory is thrown, and nothing stays allocated.
void check_out_of_memory(const Subject& subject);
/// Queries that see nothing have O = 0, LSE = -inf and dQ = 0, also where a key that others see is infinite.
void check_unseeing_queries(const Subject& subject);
/// A NaN among the queries is in that query's O, LSE and dQ, and in no other's.
void check_nan_shows(const Subject& subject);
/// Batch and head strides beyond 2^32 elements (sparse host memory; CPU only).
void check_wide_strides(const Subject& subject);
/// Two threads at once give what one gives.
void check_concurrent_calls(const Subject& subject);
/// Problems out of range and types it does not have are refused with a reason.
void check_refusals(const Subject& subject);

}  // namespace warpmeter::attention::conformance

/// Defines the suite `Suite`Conformance for the implementation `name` on devices of `kind`.
#define WM_ATTENTION_CONFORMANCE(Suite, kind, name)                                         \
  class Suite##Conformance : public testing::Test {                                         \
   protected:                                                                               \
    void SetUp() override {                                                                 \
      if (!subject.missing().empty()) GTEST_SKIP() << subject.missing();                    \
    }                                                                                       \
    const warpmeter::attention::conformance::Subject subject{kind, name};                   \
  };                                                                                        \
  namespace conformance = warpmeter::attention::conformance;                                \
  TEST_F(Suite##Conformance, Lengths) {                                                     \
    conformance::run_all(subject, conformance::length_cases(conformance::Extent::thinned)); \
  }                                                                                         \
  TEST_F(Suite##Conformance, HeadDims) {                                                    \
    conformance::run_all(subject, conformance::head_dim_cases());                           \
  }                                                                                         \
  TEST_F(Suite##Conformance, GroupedHeads) {                                                \
    conformance::run_all(subject, conformance::group_cases());                              \
  }                                                                                         \
  TEST_F(Suite##Conformance, Layouts) {                                                     \
    conformance::run_all(subject, conformance::layout_cases());                             \
  }                                                                                         \
  TEST_F(Suite##Conformance, ExtremeValues) {                                               \
    conformance::run_all(subject, conformance::value_cases());                              \
  }                                                                                         \
  TEST_F(Suite##Conformance, UnseeingQueries) {                                             \
    conformance::check_unseeing_queries(subject);                                           \
  }                                                                                         \
  TEST_F(Suite##Conformance, NanShows) {                                                    \
    conformance::check_nan_shows(subject);                                                  \
  }                                                                                         \
  TEST_F(Suite##Conformance, SameBits) {                                                    \
    conformance::check_same_bits(subject);                                                  \
  }                                                                                         \
  TEST_F(Suite##Conformance, MemoryPlan) {                                                  \
    conformance::check_memory_plan(subject);                                                \
  }                                                                                         \
  TEST_F(Suite##Conformance, OutOfMemory) {                                                 \
    conformance::check_out_of_memory(subject);                                              \
  }                                                                                         \
  TEST_F(Suite##Conformance, WideStrides) {                                                 \
    conformance::check_wide_strides(subject);                                               \
  }                                                                                         \
  TEST_F(Suite##Conformance, ConcurrentCalls) {                                             \
    conformance::check_concurrent_calls(subject);                                           \
  }                                                                                         \
  TEST_F(Suite##Conformance, Refusals) {                                                    \
    conformance::check_refusals(subject);                                                   \
  }                                                                                         \
  static_assert(true, "a semicolon follows")
