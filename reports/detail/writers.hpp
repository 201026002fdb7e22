#pragma once

#include <memory>

#include "reports/writer.hpp"

namespace warpmeter::reports::detail {

[[nodiscard]] std::unique_ptr<Writer> make_markdown_writer(WriterOptions options);
[[nodiscard]] std::unique_ptr<Writer> make_json_writer(WriterOptions options);
[[nodiscard]] std::unique_ptr<Writer> make_json_lines_writer(WriterOptions options);
[[nodiscard]] std::unique_ptr<Writer> make_csv_writer(WriterOptions options);

/// Appends the names that are not there yet.
void append_new(std::vector<std::string>& names, const std::vector<std::string>& more);

}  // namespace warpmeter::reports::detail
