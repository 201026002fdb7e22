#include "tools/harness/sweep.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/core.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "reports/reader.hpp"
#include "tools/harness/doctor/doctor.hpp"
#include "tools/harness/isolation.hpp"
#include "tools/harness/memory_guard.hpp"
#include "tools/harness/oom_dump.hpp"
#include "tools/harness/progress.hpp"
#include "tools/harness/resume.hpp"
#include "tools/harness/sweep_outputs.hpp"
#include "tools/harness/sweep_plan.hpp"
#include "tools/harness/sweep_row.hpp"
#include "tools/harness/sweep_warnings.hpp"

namespace warpmeter::harness {
namespace {

using reports::Row;
using reports::Status;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// For the progress line only: a prediction that throws is its row's error when the row's turn comes.
double flops_of(const Case& a_case) {
  try {
    return predicted_flops(a_case.predict());
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

struct Sweep::Impl {
  Impl(Session& s, const OptionTable& t, Options o, reports::Document d)
      : session(s),
        table(t),
        options(std::move(o)),
        document(std::move(d)),
        console(options.program),
        resume(read_resume()) {
    session.on_warning([this](const std::string& text) { console.warning(text); });
    document.row_keys = options.row_keys;
  }
  ~Impl() { session.on_warning({}); }

  // Before the outputs are opened: --resume and -o may name the same file.
  std::optional<Resume> read_resume() const {
    const std::string& path = session.settings().resume;
    if (path.empty()) return std::nullopt;
    const std::string accepted = "a JSON or JSON-lines result of this tool";
    try {
      const reports::Document earlier = reports::read_document(path);
      if (earlier.tool != document.tool) {
        throw UsageError("--resume", path, fmt::format("it is a result of {}", one_line(earlier.tool)), accepted);
      }
      return Resume(earlier, document, session.settings().samples);
    } catch (const reports::ReadError& e) {
      throw UsageError("--resume", path, e.what(), accepted);
    }
  }

  int run(const std::vector<std::unique_ptr<Case>>& cases);
  void plan(const std::vector<std::unique_ptr<Case>>& cases);
  void open_outputs();
  void take_over();
  void measure(Case& a_case, Row& row);
  void measure_isolated(Case& a_case, Row& row);
  void append(Row row);
  void update_document();
  /// Warns where a CPU's memory has become faster or slower during a long sweep.
  void look_at_memory_again();
  void report_end();
  [[nodiscard]] std::vector<std::string> child_command(const Case& a_case) const;

  Session& session;
  const OptionTable& table;
  Options options;
  reports::Document document;
  ProgressConsole console;
  std::optional<Resume> resume;
  std::optional<SweepOutputs> outputs;  ///< there once the configurations are known

  Clock::time_point begin = Clock::now();
  std::vector<Row> rows;           ///< one a case; taken over, unsupported, or still not_run
  std::vector<std::string> names;  ///< of the rows, for people
  std::vector<double> flops;       ///< of the rows that are to run
  reports::Object ceilings;        ///< measured by isolated children
  std::string stopped;             ///< why no further row is run; empty: go on
  bool interrupted = false;
};

void Sweep::Impl::plan(const std::vector<std::unique_ptr<Case>>& cases) {
  for (const auto& a_case : cases) {
    Row row = planned_row(*a_case, table, options.program);
    if (const auto reason = a_case->unsupported()) {
      row.status = Status::unsupported;
      row.reason = one_line(*reason);
    }
    rows.push_back(std::move(row));
  }
  names = labels(rows);
}

void Sweep::Impl::take_over() {
  std::size_t taken = 0, failed = 0, absent = 0;
  for (Row& row : rows) {
    if (row.status != Status::not_run) continue;  // unsupported here and now, whatever was then
    if (const Row* earlier = resume->find(row.configuration)) {
      row.figures = earlier->figures;
      row.status = earlier->status;
      row.reason = earlier->reason;
      ++taken;
    } else {
      ++(resume->failed_before(row.configuration) ? failed : absent);
    }
  }
  std::string why;
  if (!resume->refusal().empty()) {
    why = fmt::format(", all run: {}", resume->refusal());
  } else if (failed + absent > 0) {
    why = fmt::format(", {} run: {} not in it, {} failed in it", failed + absent, absent, failed);
  }
  console.line(
      fmt::format("--resume {}: {} of {} rows taken over{}", session.settings().resume, taken, rows.size(), why));
}

std::vector<std::string> Sweep::Impl::child_command(const Case& a_case) const {
  std::vector<std::string> command = options.self_command;
  const std::vector<std::string> arguments = table.rerun_arguments(a_case.option_values());
  command.insert(command.end(), arguments.begin(), arguments.end());
  // auto must not be decided again, perhaps otherwise.
  if (std::find(arguments.begin(), arguments.end(), "--device") == arguments.end()) {
    command.insert(command.end(), {"--device", name(session.settings().device)});
  }
  return command;
}

void Sweep::Impl::measure_isolated(Case& a_case, Row& row) {
  try {
    if (const auto reason = predicted_oom(a_case.predict(), session)) {
      row.status = Status::oom;
      row.reason = *reason;
      return;
    }
    IsolatedRun run;
    run.command = child_command(a_case);
    OomDump* const dump = session.oom_dump();
    if (dump != nullptr) run.command.insert(run.command.end(), {"--dump-on-oom", dump->next_path()});
    run.timeout_s = session.settings().row_timeout_s;
    run.ceilings = ceilings;
    run.row_keys = options.row_keys;
    run.on_warning = [this](const std::string& text) { session.warn(text); };
    IsolatedResult result = run_isolated(run, row);
    row = std::move(result.row);
    if (dump != nullptr && row.status == Status::oom) dump->count_one();
    ceilings = std::move(result.ceilings);
  } catch (const std::exception& e) {
    row.status = Status::error;
    row.reason = one_line(e.what());
  }
  if (row.status == Status::interrupted) {
    interrupted = true;
    stopped = interrupt_text() + " came before it";
  }
}

void Sweep::Impl::measure(Case& a_case, Row& row) {
  if (session.settings().isolate) return measure_isolated(a_case, row);
  switch (run_in_process(session, a_case, row)) {
    case Aftermath::usable:
      break;
    case Aftermath::interrupted:
      interrupted = true;
      stopped = interrupt_text() + " came before it";
      break;
    case Aftermath::run_lost:
      stopped = fmt::format("row {} ended the run ({}); --isolate keeps that to one row", document.rows.size() + 1,
                            row.reason);
      break;
    case Aftermath::device_lost:
      stopped = fmt::format("the device was lost in row {} ({}); --isolate keeps that to one row",
                            document.rows.size() + 1, row.reason);
      break;
  }
}

void Sweep::Impl::update_document() {
  summarize(document);
  document.summary.set("seconds", seconds_since(begin));
  document.summary.set("warnings", session.warnings());
  reports::Object known = ceilings;
  const reports::Object measured = session.measured_ceilings();
  for (const auto& [name, value] : measured.fields()) known.set(name, value);
  document.device.set("ceilings", known);
}

void Sweep::Impl::append(Row row) {
  document.rows.push_back(std::move(row));
  update_document();
  outputs->row(document, stopped.empty());
}

void Sweep::Impl::open_outputs() {
  std::vector<reports::Object> configurations;
  for (const Row& row : rows) configurations.push_back(row.configuration);
  const Settings& settings = session.settings();
  const reports::WriterOptions writer_options{tell_apart(options.layout, options.row_keys, configurations),
                                              settings.wide, settings.columns, settings.samples};
  outputs.emplace(settings, writer_options, console);
}

int Sweep::Impl::run(const std::vector<std::unique_ptr<Case>>& cases) {
  plan(cases);
  open_outputs();
  if (!options.greeting.empty()) console.line(options.greeting);
  for (const std::string& text : machine_warnings(build_info(), machine_state(), session.settings()))
    session.warn(text);
  if (session.settings().device.is_cuda()) {
    const doctor::Nvml nvml;
    const std::string device = name(session.settings().device);
    for (const auto& finding : doctor::gpu_warnings(nvml, session.device_properties().uuid, device)) {
      session.warn(fmt::format("{}: {}; {}", finding.subject, finding.seen, finding.remedy));
    }
  }
  if (resume) take_over();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].status == Status::not_run) flops.push_back(flops_of(*cases[i]));
  }
  Progress progress(console, flops);
  const bool announce = console.is_terminal() && isatty(STDOUT_FILENO) != 1;
  update_document();
  outputs->begin(document);

  for (std::size_t i = 0; i < cases.size(); ++i) {
    Row row = std::move(rows[i]);
    if (row.status == Status::not_run && stopped.empty()) {
      if (interrupt_requested()) {
        interrupted = true;
        stopped = interrupt_text() + " came before it";
      } else if (!outputs->useful()) {
        stopped = "there is nowhere left to put results";
      }
    }
    if (row.status == Status::not_run && stopped.empty()) {
      progress.start(names[i]);
      const Clock::time_point row_begin = Clock::now();
      measure(*cases[i], row);
      const double seconds = seconds_since(row_begin);
      progress.finish(seconds);
      if (announce) {
        console.line(fmt::format("[{}/{}] {}: {}{}{} ({})", i + 1, cases.size(), names[i], name(row.status),
                                 row.reason.empty() ? "" : ", ", row.reason, format_duration(seconds)));
      }
    } else if (row.status == Status::not_run) {
      row.reason = stopped;
    }
    append(std::move(row));
  }
  look_at_memory_again();
  console.clear_status();
  update_document();
  outputs->end(document);
  report_end();

  if (interrupted) return 130;
  const bool failed =
      std::any_of(document.rows.begin(), document.rows.end(), [](const Row& row) { return is_failure(row.status); });
  return failed || outputs->failed() ? 1 : 0;
}

void Sweep::Impl::look_at_memory_again() {
  constexpr double kLongSeconds = 30;  // beside which a third of a second more does not matter
  if (!stopped.empty() || seconds_since(begin) < kLongSeconds) return;
  if (!session.settings().device.is_cpu() || session.measured_ceilings().empty()) return;
  try {
    if (const auto text = session.ceilings().memory_drift()) session.warn(*text);
  } catch (const Interrupted&) {  // the rows are all there
  }
}

/// One line that says why the exit status will not be 0.
void Sweep::Impl::report_end() {
  std::size_t failed = 0;
  const Row* first = nullptr;
  std::size_t first_index = 0;
  std::string counts;
  for (const Status status :
       {Status::mismatch, Status::error, Status::crashed, Status::timeout, Status::interrupted, Status::not_run}) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < document.rows.size(); ++i) {
      if (document.rows[i].status != status) continue;
      ++n;
      if (first == nullptr) {
        first = &document.rows[i];
        first_index = i;
      }
    }
    if (n != 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", n, name(status));
    failed += n;
  }
  if (failed == 0) return;
  console.line(fmt::format("{} of {} rows without a result: {}; row {} ({}): {}", failed, document.rows.size(), counts,
                           first_index + 1, names[first_index], first->reason));
}

Sweep::Sweep(Session& session, const OptionTable& table, Options options, reports::Document document)
    : impl_(std::make_unique<Impl>(session, table, std::move(options), std::move(document))) {}
Sweep::~Sweep() = default;

int Sweep::run(std::vector<std::unique_ptr<Case>> cases) {
  return impl_->run(cases);
}
const reports::Document& Sweep::document() const {
  return impl_->document;
}

}  // namespace warpmeter::harness
