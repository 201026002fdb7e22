#include "kernels/collectives/auto_table.hpp"

#include <charconv>
#include <cmath>
#include <stdexcept>

namespace warpmeter::collectives {
namespace {

constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

CollectiveKind kind_of(int index) {
  return static_cast<CollectiveKind>(index);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    at = end;
  }
  return words;
}

[[noreturn]] void refuse(std::string_view line, const std::string& why) {
  throw std::invalid_argument("'" + std::string(line) + "': " + why);
}

}  // namespace

std::string_view name(AutoTable::Choice choice) noexcept {
  return choice == AutoTable::Choice::nccl ? "nccl" : "p2p";
}

AutoTable AutoTable::always(Choice choice) {
  AutoTable table;
  for (std::vector<Span>& spans : table.spans_) spans = {{kNoEnd, choice}};
  return table;
}

AutoTable AutoTable::parse(std::string_view text) {
  AutoTable table = always(Choice::p2p);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    int kind = 0;
    while (kind < kKinds && name(kind_of(kind)) != words.front()) ++kind;
    if (kind == kKinds)
      refuse(line, "a line begins with the name of a collective, as in 'all_reduce p2p 1048576 nccl'");
    if (words.size() % 2 != 0) refuse(line, "p2p or nccl, and a number of bytes between two of them");
    std::vector<Span> spans;
    for (std::size_t i = 1; i < words.size(); i += 2) {
      Span span;
      if (words[i] != name(Choice::p2p) && words[i] != name(Choice::nccl)) refuse(line, "accepted are p2p and nccl");
      span.choice = words[i] == name(Choice::nccl) ? Choice::nccl : Choice::p2p;
      if (i + 1 < words.size()) {
        const std::string_view number = words[i + 1];
        const auto [last, error] = std::from_chars(number.data(), number.data() + number.size(), span.up_to);
        const std::int64_t before = spans.empty() ? -1 : spans.back().up_to;
        if (error != std::errc() || last != number.data() + number.size() || span.up_to <= before) {
          refuse(line, "bytes are ascending whole numbers");
        }
      }
      spans.push_back(span);
    }
    table.spans_[static_cast<std::size_t>(kind)] = spans;
  }
  return table;
}

std::string AutoTable::text() const {
  std::string text;
  for (int kind = 0; kind < kKinds; ++kind) {
    text.append(name(kind_of(kind)));
    for (const Span& span : spans_[static_cast<std::size_t>(kind)]) {
      text.append(" ").append(name(span.choice));
      if (span.up_to != kNoEnd) text.append(" ").append(std::to_string(span.up_to));
    }
    text.append("\n");
  }
  return text;
}

AutoTable::Choice AutoTable::choice(CollectiveKind kind, std::int64_t bytes) const {
  for (const Span& span : spans_[static_cast<std::size_t>(kind)]) {
    if (bytes <= span.up_to) return span.choice;
  }
  return Choice::p2p;
}

void AutoTable::set(CollectiveKind kind, const std::vector<Span>& measured) {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    if (!spans.empty() && spans.back().choice == measured[i].choice) continue;
    if (!spans.empty()) {
      const double between =
          std::sqrt(static_cast<double>(measured[i - 1].up_to) * static_cast<double>(measured[i].up_to));
      spans.back().up_to = static_cast<std::int64_t>(between);
    }
    spans.push_back({kNoEnd, measured[i].choice});
  }
  if (!spans.empty()) spans_[static_cast<std::size_t>(kind)] = spans;
}

}  // namespace warpmeter::collectives
