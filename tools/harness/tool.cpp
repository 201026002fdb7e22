#include "tools/harness/tool.hpp"

#include <algorithm>
#include <csignal>
#include <exception>
#include <sstream>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "tools/harness/doctor/doctor.hpp"
#include "tools/harness/isolation_channel.hpp"
#include "tools/harness/progress_console.hpp"
#include "tools/harness/provenance.hpp"
#include "tools/harness/sweep_outputs.hpp"
#include "tools/harness/sweep_plan.hpp"
#include "tools/harness/sweep_row.hpp"

namespace warpmeter::harness {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

/// Text that a user asked for instead of a measurement.
std::optional<std::string> text_for(const Tool& tool, const OptionTable& table) {
  switch (table.action()) {
    case OptionTable::Action::run:
    case OptionTable::Action::doctor:
      return std::nullopt;
    case OptionTable::Action::help:
      return table.help_text();
    case OptionTable::Action::help_markdown:
      return table.markdown_text();
    case OptionTable::Action::version:
      return version_text(tool.name());
    case OptionTable::Action::list:
      return tool.list(table);
    case OptionTable::Action::print_config:
      return table.config_text();
  }
  return std::nullopt;
}

std::string describe_device(Device device, const DeviceProperties& properties) {
  if (device.is_cuda()) return fmt::format("{} ({})", name(device), properties.name);
  return fmt::format("cpu ({}, {} cores): {}", properties.name, properties.cores, cuda_unavailable_reason());
}

void require_something_supported(const std::vector<std::unique_ptr<Case>>& cases) {
  if (cases.empty()) throw UsageError("the options leave no configuration to measure");
  std::optional<std::string> first;
  for (const auto& a_case : cases) {
    const auto reason = a_case->unsupported();
    if (!reason) return;
    if (!first) first = reason;
  }
  throw UsageError(
      cases.size() == 1
          ? fmt::format("nothing to measure: {}", *first)
          : fmt::format("nothing to measure: none of {} configurations can run; the first: {}", cases.size(), *first));
}

reports::Document make_document(const Tool& tool, const OptionTable& table, const Session& session, int argc,
                                const char* const* argv) {
  reports::Document document;
  document.tool = tool.name();
  document.version = version_object();
  document.argv.assign(argv, argv + argc);
  document.started_at = utc_now();
  document.device = device_object(session.settings().device, session.device_properties());
  document.libraries = libraries_object();
  document.settings = describe(session.settings());
  document.row_keys = tool.row_keys_for(table);
  return document;
}

/// This process is an isolated child: its one row goes to the parent and nothing to stdout.
int run_child(Session& session, const OptionTable& table, const std::string& program,
              const std::vector<std::unique_ptr<Case>>& cases) {
  if (cases.size() != 1) {
    throw UsageError(fmt::format("an isolated process runs one configuration, not {}", cases.size()));
  }
  ChildChannel channel(session.settings().isolated_child_fd);
  session.adopt_ceilings(channel.receive_ceilings());
  session.on_warning([&](const std::string& text) { channel.send_warning(text); });
  session.on_checkpoint([&](const reports::Row& row) {
    channel.send_ceilings(session.measured_ceilings());
    channel.send_row(row, false);
  });
  reports::Row row = planned_row(*cases.front(), table, program);
  (void)run_in_process(session, *cases.front(), row);
  channel.send_ceilings(session.measured_ceilings());
  channel.send_row(row, true);
  session.on_warning({});
  session.on_checkpoint({});
  return row.status == reports::Status::interrupted ? 130 : 0;
}

/// Columns of a dry run: what identifies a row, what is predicted of it.
std::vector<std::string> dry_run_columns(const reports::Document& document) {
  std::vector<std::string> columns = document.row_keys;
  const auto add = [&](const std::string& column) {
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  };
  for (const reports::Row& row : document.rows) {
    for (const auto& [field, value] : row.figures.fields()) add(field);
  }
  for (const char* column : {"status", "reason"}) add(column);
  return columns;
}

void check_columns(const std::vector<std::string>& asked, const std::vector<std::string>& accepted) {
  for (const std::string& column : asked) {
    if (std::find(accepted.begin(), accepted.end(), column) != accepted.end()) continue;
    std::string names;
    for (const std::string& name : accepted) names += (names.empty() ? "" : ", ") + name;
    throw UsageError("--columns", column, "no such column", names);
  }
}

int print_dry_run(Session& session, const Tool& tool, const OptionTable& table,
                  const std::vector<std::unique_ptr<Case>>& cases, reports::Document document) {
  ProgressConsole console(tool.name());
  const Settings& settings = session.settings();
  document = dry_run(session, table, tool.name(), cases, std::move(document));
  reports::WriterOptions options;
  options.columns = dry_run_columns(document);
  if (!settings.columns.empty()) {
    std::vector<std::string> accepted = reports::column_names(tool.layout_for(table), tool.row_keys_for(table));
    accepted.insert(accepted.end(), options.columns.begin(), options.columns.end());
    check_columns(settings.columns, accepted);
    options.columns = settings.columns;
  }
  std::ostringstream text;
  reports::write_document(document, settings.format, options, text);
  return print_text(text.view(), console) ? 0 : kFailure;
}

/// Started with one of them closed (>&-), the next file opened would get its number, and messages would go into it.
void occupy_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest free number is fd. stdout is opened for reading: writing to it must go on failing.
    (void)open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

int run(const Tool& tool, int argc, const char* const* argv) {
  const OptionTable table = parse_command_line(tool, argc, argv);
  if (const auto text = text_for(tool, table)) {
    ProgressConsole console(tool.name());
    return print_text(*text, console) ? 0 : kFailure;
  }

  if (table.action() == OptionTable::Action::doctor) {
    install_interrupt_handler();
    return doctor::run_doctor(tool.name(), table, argc, argv);
  }

  Settings settings = read_settings(table, tool.dtypes());
  tool.adjust(table, settings);
  auto cases = tool.cases(table, settings);
  require_something_supported(cases);

  install_interrupt_handler();
  Session session(settings);
  if (settings.isolated_child_fd >= 0) return run_child(session, table, tool.name(), cases);

  reports::Document document = make_document(tool, table, session, argc, argv);
  if (settings.dry_run) return print_dry_run(session, tool, table, cases, std::move(document));

  check_columns(settings.columns, reports::column_names(tool.layout_for(table), tool.row_keys_for(table)));
  Sweep::Options options{tool.name(), {"/proc/self/exe"}, tool.layout_for(table), tool.row_keys_for(table), ""};
  if (settings.device_was_auto) {
    options.greeting = fmt::format("device {}", describe_device(settings.device, session.device_properties()));
  }
  Sweep sweep(session, table, std::move(options), std::move(document));
  const int status = sweep.run(std::move(cases));
  ProgressConsole console(tool.name());
  for (const std::string& line : tool.closing(table, sweep.document())) console.line(line);
  return status;
}

}  // namespace

/// Parses twice: the preset in force when none is named depends on the device, which is itself an option.
OptionTable parse_command_line(const Tool& tool, int argc, const char* const* argv) {
  OptionTable table(tool.name(), tool.summary());
  add_shared_options(table, tool.dtypes());
  tool.add_options(table);
  table.parse(argc, argv);
  Device device = Device::cpu();
  try {
    device = parse_device(table.text("--device"));
  } catch (const std::invalid_argument&) {
    // Not there: --help and the like still work, and read_settings says what is wrong.
  }
  table.set_default_preset(tool.preset_for(table, device));
  table.parse(argc, argv);
  return table;
}

int run_tool(const Tool& tool, int argc, const char* const* argv) {
  occupy_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error of write(), to be told from others
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file-size limit
  ProgressConsole console(tool.name());
  try {
    return run(tool, argc, argv);
  } catch (const UsageError& e) {
    console.line(e.what());
    return kUsage;
  } catch (const Interrupted&) {
    console.line("interrupted before anything was measured");
    return 130;
  } catch (const std::exception& e) {
    console.line(e.what());
  } catch (...) {
    console.line("an exception of an unknown type");
  }
  return kFailure;
}

}  // namespace warpmeter::harness
