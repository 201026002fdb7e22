// A tool without kernels, whose rows do what their name says: what run_tool makes of them is what is tested.
//
//     fake_tool --behavior ok,crash --index 1:3:+1 --kib 4
//
// A row allocates --kib KiB through the session, "measures" a first phase (first_ms = index, checkpoint) and then a
// second one (second_ms = 10 * index), unless its behavior comes in between.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tools/harness/tool.hpp"

namespace {

using namespace warpmeter;
using namespace warpmeter::harness;

constexpr std::array<std::string_view, 28> kBehaviors = {
    "ok",         "oom",        "second_oom", "exception",   "unknown", "device_error",  "sticky",
    "leak",       "mismatch",   "crash",      "late_crash",  "abort",   "kill",          "exit",
    "hang",       "deaf",       "slow",       "unsupported", "huge",    "warn",          "other_config",
    "grandchild", "exit_crash", "multiline",  "deaf_at_77",  "ceiling", "no_prediction", "lost"};

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// For ten minutes, which no test waits for. FAKE_TOOL_HANGS names a file that then holds the process that hangs.
void hang(bool deaf) {
  if (const char* const path = std::getenv("FAKE_TOOL_HANGS")) std::ofstream(path) << getpid() << '\n';
  for (int i = 0; i < 60000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!deaf) throw_if_interrupted();
  }
}

class FakeCase : public Case {
 public:
  FakeCase(std::string behavior, std::int64_t index, std::int64_t kib)
      : behavior_(std::move(behavior)), index_(index), kib_(kib) {}

  [[nodiscard]] reports::Object configuration() const override {
    reports::Object object;
    object.set("behavior", behavior_);
    object.set("index", index_);
    object.set("kib", kib_);
    return object;
  }

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override {
    const std::int64_t index = behavior_ == "other_config" ? index_ + 1 : index_;
    return {{"--behavior", behavior_}, {"--index", std::to_string(index)}, {"--kib", std::to_string(kib_)}};
  }

  [[nodiscard]] std::optional<std::string> unsupported() const override {
    if (behavior_ != "unsupported") return std::nullopt;
    return "nobody supports this";
  }

  [[nodiscard]] Prediction predict() const override {
    if (behavior_ == "no_prediction") throw std::overflow_error("too large to predict");
    Prediction prediction;
    prediction.peak_bytes = behavior_ == "huge" || behavior_ == "second_oom" ? std::size_t{1} << 50 : bytes();
    prediction.first_phase_bytes = behavior_ == "huge" ? prediction.peak_bytes : bytes();
    prediction.details.set("first_flops", 1e6 * static_cast<double>(index_));
    prediction.details.set("second_flops", 2e6 * static_cast<double>(index_));
    return prediction;
  }

  void run(Session& session, reports::Row& row) override {
    const Context context = session.context();
    const Buffer memory(context, bytes());
    row.figures.set("process", static_cast<std::int64_t>(getpid()));
    row.figures.set("allocated_bytes", static_cast<std::uint64_t>(session.allocator().stats().current.allocated));
    before_the_first_phase(session, row);
    row.figures.set("first_ms", static_cast<double>(index_));
    row.figures.set("first_samples_ms", std::vector<double>(3, static_cast<double>(index_)));
    row.figures.set("max_error", 0.25);
    session.checkpoint(row);
    between_the_phases(session, row);
    row.figures.set("second_ms", 10.0 * static_cast<double>(index_));
    row.figures.set("second_tflops", 0.5);
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(kib_) * 1024; }

  void before_the_first_phase(Session& session, reports::Row& row) {
    const Context context = session.context();
    if (behavior_ == "oom") Buffer(context, std::size_t{1} << 50);
    if (behavior_ == "exception") throw std::runtime_error("it went wrong");
    if (behavior_ == "multiline") throw std::runtime_error("first line\nsecond line");
    if (behavior_ == "unknown") throw 42;
    if (behavior_ == "device_error") throw DeviceError("the driver refused", false);
    if (behavior_ == "sticky") throw DeviceError("an illegal address was read", true);
    if (behavior_ == "lost") throw RunLost(reports::Status::timeout, "rank 3 did not come");
    if (behavior_ == "leak") (void)session.allocator().allocate(kMiB, context.stream);
    if (behavior_ == "crash") std::raise(SIGSEGV);
    if (behavior_ == "abort") std::abort();
    if (behavior_ == "exit") _exit(3);
    if (behavior_ == "ceiling") row.figures.set("read_gbps", session.ceilings().read_gbps());
    if (behavior_ == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(150));
    if (behavior_ == "warn") session.warn("something looks odd");
    if (behavior_ == "exit_crash") std::atexit([] { std::raise(SIGSEGV); });
  }

  void between_the_phases(Session& session, reports::Row& row) {
    const Context context = session.context();
    if (behavior_ == "second_oom") Buffer(context, std::size_t{1} << 50);
    if (behavior_ == "late_crash") std::raise(SIGSEGV);
    if (behavior_ == "kill") std::raise(SIGKILL);
    if (behavior_ == "hang") hang(false);
    if (behavior_ == "deaf" || (behavior_ == "deaf_at_77" && index_ == 77)) hang(true);
    if (behavior_ == "grandchild" && fork() == 0) {
      hang(true);  // holds the socket to the parent open
      _exit(0);
    }
    if (behavior_ == "grandchild") std::raise(SIGSEGV);
    if (behavior_ == "mismatch") {
      row.status = reports::Status::mismatch;
      row.reason = "largest error 0.25 at 7";
    }
  }

  std::string behavior_;
  std::int64_t index_;
  std::int64_t kib_;
};

class FakeTool : public Tool {
 public:
  [[nodiscard]] std::string name() const override { return "fake_tool"; }
  [[nodiscard]] std::string summary() const override { return "Rows that behave as they are told."; }

  void add_options(OptionTable& table) const override {
    table.add({.name = "--behavior",
               .metavar = "NAMES",
               .default_text = "ok",
               .accepted = "names of behaviors",
               .help = "What rows do.",
               .example = "--behavior ok,oom",
               .group = "Configurations",
               .row_option = true});
    for (const char* number : {"--index", "--kib"}) {
      table.add({.name = number,
                 .metavar = "LIST",
                 .default_text = "4",
                 .accepted = "whole numbers from 1, lists and ranges",
                 .help = "A number.",
                 .example = std::string(number) + " 1,2",
                 .group = "Configurations",
                 .row_option = true});
    }
    table.add_presets({{"tiny", "one row", {{"--index", "7"}, {"--warmup", "3"}}},
                       {"gpu", "what a GPU would get", {{"--index", "8"}}}});
  }

  [[nodiscard]] std::string default_preset(Device device) const override { return device.is_cuda() ? "gpu" : "tiny"; }
  [[nodiscard]] std::string list(const OptionTable&) const override { return "the list\n"; }

  [[nodiscard]] std::vector<std::unique_ptr<Case>> cases(const OptionTable& table, const Settings&) const override {
    std::vector<std::unique_ptr<Case>> cases;
    for (const std::string& behavior : table.words("--behavior", kBehaviors)) {
      for (const std::int64_t kib : table.integers("--kib", 1, std::int64_t{1} << 40)) {
        for (const std::int64_t index : table.integers("--index", 1, 1'000'000)) {
          cases.push_back(std::make_unique<FakeCase>(behavior, index, kib));
        }
      }
    }
    return cases;
  }

  [[nodiscard]] reports::TableLayout layout() const override {
    return {{"behavior"}, {"index", "kib", "first_ms", "second_ms", "status"}, {"process", "max_error"}};
  }
  [[nodiscard]] std::vector<std::string> row_keys() const override { return {"behavior", "index", "kib"}; }
};

}  // namespace

int main(int argc, char** argv) {
  return run_tool(FakeTool(), argc, argv);
}
