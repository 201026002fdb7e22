#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace warpmeter::harness::launch {

/// What a rank and the process that leads them say to each other: a letter and a line of text, often JSON.
enum class Say : char {
  // rank -> leader
  hello = 'H',    ///< who it is
  done = 'D',     ///< what it was told to do is done: an outcome
  failed = 'F',   ///< the group is broken: a fault
  stuck = 'S',    ///< a collective takes longer than the time-out
  answer = 'A',   ///< where it is
  warning = 'W',  ///< text
  // leader -> rank
  form = 'G',   ///< form a group
  row = 'R',    ///< measure a configuration, by its number
  other = 'M',  ///< something else that the tool's ranks know
  where = '?',  ///< answered at once, whatever the rank is at
  quit = 'Q',
};

struct Message {
  Say say;
  std::string text;
};

/// One end of a stream socket that carries such messages. Any thread may send; one receives.
class Link {
 public:
  explicit Link(int fd);
  ~Link();
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool open() const noexcept { return fd_ >= 0; }
  /// False when the other end is gone. Never throws, never raises SIGPIPE.
  bool send(Say say, std::string_view text = "");
  /// Reads what has come without waiting for more. False at the end of the stream.
  bool pump();
  [[nodiscard]] std::optional<Message> next();
  /// Waits for a message; nullopt at the end of the stream or after `seconds`.
  [[nodiscard]] std::optional<Message> receive(double seconds);
  void close() noexcept;

 private:
  int fd_;
  std::string pending_;
  std::unique_ptr<std::mutex> sending_;
};

}  // namespace warpmeter::harness::launch
