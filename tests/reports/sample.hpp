#pragma once

#include <string>

#include "reports/model.hpp"
#include "reports/writer.hpp"

namespace warpmeter::reports::testing {

/// A document as attn_bench would write it that has every status, figures that are missing, null and not finite, odd
/// texts and several groups. Valid by the schema.
[[nodiscard]] Document sample_document();
[[nodiscard]] TableLayout sample_layout();

/// The document in a format, by write_document().
[[nodiscard]] std::string written(const Document& document, Format format, const WriterOptions& options = {});

}  // namespace warpmeter::reports::testing
