#include "tools/harness/sweep_plan.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "tools/harness/memory_guard.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {
namespace {

std::string short_text(const reports::Object& configuration, const std::string& name) {
  const reports::Value* value = configuration.find(name);
  if (value == nullptr || value->is_null()) return {};
  if (const auto* text = value->as_string()) return *text;  // "flash", "bf16": says what it is
  if (const auto* flag = value->as_bool()) return *flag ? name : "no-" + name;
  if (const auto* whole = value->as_int()) return fmt::format("{}={}", name, *whole);
  return {};
}

void predict_into(reports::Row& row, const Case& a_case, Session& session) {
  try {
    const Prediction prediction = a_case.predict();
    row.figures = prediction.details;
    row.figures.set("predicted_peak_mem_mib", static_cast<double>(prediction.peak_bytes) / (1024.0 * 1024.0));
    const auto oom = predicted_oom(prediction, session);
    row.status = oom ? reports::Status::oom : reports::Status::skipped;
    row.reason = oom.value_or("dry run");
  } catch (const std::exception& e) {
    row.status = reports::Status::error;
    row.reason = one_line(e.what());
  }
}

}  // namespace

reports::Row planned_row(const Case& a_case, const OptionTable& table, const std::string& program) {
  reports::Row row;
  row.configuration = a_case.configuration();
  std::vector<std::string> line = table.rerun_arguments(a_case.option_values());
  line.insert(line.begin(), program);
  row.rerun = shell_line(line);
  return row;
}

double predicted_flops(const Prediction& prediction) {
  double flops = 0;
  for (const auto& [name, value] : prediction.details.fields()) {
    if (name == "flops" || name.ends_with("_flops")) flops += value.as_number().value_or(0);
  }
  return flops;
}

reports::Document dry_run(Session& session, const OptionTable& table, const std::string& program,
                          const std::vector<std::unique_ptr<Case>>& cases, reports::Document document) {
  for (const auto& a_case : cases) {
    reports::Row row = planned_row(*a_case, table, program);
    if (const auto reason = a_case->unsupported()) {
      row.status = reports::Status::unsupported;
      row.reason = *reason;
    } else {
      predict_into(row, *a_case, session);
    }
    document.rows.push_back(std::move(row));
  }
  summarize(document);
  return document;
}

std::vector<std::string> labels(const std::vector<reports::Row>& rows) {
  std::vector<std::string> varying;
  if (!rows.empty()) {
    for (const auto& [name, value] : rows.front().configuration.fields()) {
      const bool differs = std::any_of(rows.begin(), rows.end(), [&name = name, &value = value](const reports::Row& r) {
        const reports::Value* other = r.configuration.find(name);
        return other == nullptr || !(*other == value);
      });
      if (differs || varying.empty()) varying.push_back(name);
    }
  }
  std::vector<std::string> result;
  for (const reports::Row& row : rows) {
    std::string label;
    for (const std::string& name : varying) {
      const std::string part = short_text(row.configuration, name);
      if (!part.empty()) label += (label.empty() ? "" : " ") + part;
    }
    result.push_back(std::move(label));
  }
  return result;
}

}  // namespace warpmeter::harness
