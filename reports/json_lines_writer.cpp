#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/detail/writers.hpp"

namespace warpmeter::reports::detail {
namespace {

/// A header line, a line a row, a summary line, each whole and flushed: what a killed run leaves can be read.
class JsonLinesWriter final : public Writer {
 public:
  explicit JsonLinesWriter(bool samples) : samples_(samples) {}

  void begin(const Document& document, std::ostream& out) override {
    std::string line = R"({"type": "header",)";
    append_envelope(line, document, " ");
    line += '}';
    write(line, out);
  }

  void row(const Document& document, const Row& row, std::ostream& out) override {
    std::string line;
    append_row(line, row, samples_, "row", &document.row_keys);
    write(line, out);
  }

  void end(const Document& document, std::ostream& out) override {
    std::string line;
    ObjectText text(line);
    text.add("type", "summary");
    text.add(document.summary);
    text.close();
    write(line, out);
  }

 private:
  static void write(std::string& line, std::ostream& out) {
    line += '\n';
    out.write(line.data(), static_cast<std::streamsize>(line.size())).flush();
  }

  bool samples_;
};

}  // namespace

std::unique_ptr<Writer> make_json_lines_writer(WriterOptions options) {
  return std::make_unique<JsonLinesWriter>(options.samples);
}

}  // namespace warpmeter::reports::detail
