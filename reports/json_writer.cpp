#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/detail/writers.hpp"

namespace warpmeter::reports::detail {
namespace {

/// The document as one JSON object, one row a line; all of it in end().
class JsonWriter final : public Writer {
 public:
  explicit JsonWriter(bool samples) : samples_(samples) {}

  void begin(const Document&, std::ostream&) override {}
  void row(const Document&, const Row&, std::ostream&) override {}

  void end(const Document& document, std::ostream& out) override {
    std::string text = "{";
    append_envelope(text, document, "\n  ");
    text += ",\n  \"rows\": [";
    std::string_view separator = "\n    ";
    for (const Row& row : document.rows) {
      text += separator;
      append_row(text, row, samples_, "", &document.row_keys);
      separator = ",\n    ";
    }
    text += document.rows.empty() ? "],\n  \"summary\": " : "\n  ],\n  \"summary\": ";
    append_json(text, document.summary);
    text += "\n}\n";
    out.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
  }

 private:
  bool samples_;
};

}  // namespace

std::unique_ptr<Writer> make_json_writer(WriterOptions options) {
  return std::make_unique<JsonWriter>(options.samples);
}

}  // namespace warpmeter::reports::detail
