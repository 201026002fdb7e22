#pragma once

#include <string>
#include <string_view>

#include "reports/model.hpp"

namespace warpmeter::reports::detail {

/// A value as people read it, rounded by the unit at the end of the field's name:
///
///     _ms _us _s, rates, anything else   four significant digits at least: 0.9812, 12.55, 143.7, 23196
///     _kib _mib _gib                     two decimals, six significant digits at most: 46.48, 1598.91, 12397.6
///     _share _noise _mfu                 percent: 87.3%, 0.42%
///
/// without trailing zeros; whole numbers without a unit in full; very large and very small ones as 4.295e+12.
/// Null and what is not finite are "". Strings are one printable line, arrays and objects JSON.
[[nodiscard]] std::string format_cell(std::string_view name, const Value& value);

/// True when the field's name ends in a unit of a number.
[[nodiscard]] bool has_unit(std::string_view name);

/// Escapes what Markdown would take as markup or as a column's end.
[[nodiscard]] std::string escape_markdown(std::string_view text);

/// `text` as a Markdown code span, whatever backticks it holds.
[[nodiscard]] std::string code_span(std::string_view text);

}  // namespace warpmeter::reports::detail
