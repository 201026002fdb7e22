#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::harness {

/// What an isolated child and its parent say to each other over a socket pair, one message a line: a letter, a space,
/// then JSON or text.
enum class MessageKind : char {
  start = 'S',     ///< parent -> child, first and only: ceilings known so far
  row = 'R',       ///< child -> parent: the finished row
  partial = 'P',   ///< child -> parent: the row as far as it is measured
  warning = 'W',   ///< child -> parent: text
  ceilings = 'C',  ///< child -> parent: those that it measured
};

struct Message {
  MessageKind kind;
  std::string text;  ///< without line breaks
};

/// The line, with its line break. Control characters in `text` are escaped.
[[nodiscard]] std::string encode(const Message& message);

/// Cuts a byte stream into messages; bytes that are no message (a broken child) are dropped.
class MessageReader {
 public:
  void feed(std::string_view bytes);
  [[nodiscard]] std::optional<Message> next();

 private:
  std::string pending_;
};

/// A flat object of figures as one line of JSON and back; {} for what cannot be read.
[[nodiscard]] std::string figures_to_json(const reports::Object& figures);
[[nodiscard]] reports::Object figures_from_json(std::string_view text);

/// The child's end. Sending never throws: a parent that is gone wants nothing any more.
class ChildChannel {
 public:
  explicit ChildChannel(int fd) : fd_(fd) {}
  /// Waits for the parent's first message.
  [[nodiscard]] reports::Object receive_ceilings();
  void send_row(const reports::Row& row, bool finished);
  void send_warning(std::string_view text);
  void send_ceilings(const reports::Object& ceilings);

 private:
  int fd_;
};

}  // namespace warpmeter::harness
