#include "tools/harness/isolation_channel.hpp"

#include <cerrno>

#include <unistd.h>

#include "reports/reader.hpp"
#include "reports/writer.hpp"
#include "tools/harness/sweep_outputs.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {

std::string encode(const Message& message) {
  return std::string{static_cast<char>(message.kind), ' '} + one_line(message.text) + '\n';
}

void MessageReader::feed(std::string_view bytes) {
  pending_ += bytes;
}

std::optional<Message> MessageReader::next() {
  while (true) {
    const std::size_t end = pending_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    const std::string line = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    if (line.size() < 2 || line[1] != ' ' || std::string_view("SRPWC").find(line[0]) == std::string_view::npos) {
      continue;
    }
    return Message{static_cast<MessageKind>(line[0]), line.substr(2)};
  }
}

std::string figures_to_json(const reports::Object& figures) {
  reports::Row row;
  row.figures = figures;
  return reports::row_to_json(row, true);
}

reports::Object figures_from_json(std::string_view text) {
  try {
    return reports::row_from_json(text, {}).figures;
  } catch (const reports::ReadError&) {
    return {};
  }
}

reports::Object ChildChannel::receive_ceilings() {
  MessageReader reader;
  while (true) {
    if (const auto message = reader.next()) return figures_from_json(message->text);
    char bytes[4096];
    const ssize_t n = ::read(fd_, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    reader.feed({bytes, static_cast<std::size_t>(n)});
  }
}

void ChildChannel::send_row(const reports::Row& row, bool finished) {
  const MessageKind kind = finished ? MessageKind::row : MessageKind::partial;
  (void)write_all(fd_, encode({kind, reports::row_to_json(row, true)}));
}

void ChildChannel::send_warning(std::string_view text) {
  (void)write_all(fd_, encode({MessageKind::warning, std::string(text)}));
}

void ChildChannel::send_ceilings(const reports::Object& ceilings) {
  (void)write_all(fd_, encode({MessageKind::ceilings, figures_to_json(ceilings)}));
}

}  // namespace warpmeter::harness
